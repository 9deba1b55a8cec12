"""Everything about worlds that we make, and the paper's one-layer transformer trained in them.

A document is drawn from a `world` and corrupted there, and predicted by the `model`; `word_attention` is what words
attend to, at any step of a training. `theory` says from world and masking alone what the
best matrices, attention and losses are. `agreement` holds a trained toy against all of that, `landscape` the loss over
attention weights.

Each module imports only from those before it: world, theory, model, word_attention, agreement, landscape. A new regime
is a row of `model.REGIMES`, a new world an argument of `World`, a new theorem a function in `theory` with a test that
states it.
"""
