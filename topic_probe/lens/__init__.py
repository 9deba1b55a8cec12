"""The only code that knows the classes of TransformerLens and Hugging Face.

A model comes in through `opening`, which hooks it, and is read through `host`, which hands out plain tensors. A Hugging
Face model passes through it like this: `open_model` makes a host around it, whose trial runs it on a few tokens with an
attention function that shows its patterns (`interface`), and holds these against what the model itself returns, against
rows computed beside the fused kernel, and each document against itself in a batch (`trial`). `host_of` gives that with
what is known of the model. `Host.attention_rows` then runs the model on its fused kernel and hands out the rows that
are wanted, site by site; where the kernel did not agree, or somebody has put hooks on, whole patterns at hook points.

In import order: `sites` (where a model attends, and what patterns show), `running` (one forward pass), `interface`,
`trial`, `weights` (of heads), `hooked` (what differs between kinds of hooked models), `points` (the hook points of an
opened model), `host`, `edit` (hooks that replace what heads put out, or cut edges), `check`, `opening`. Each silent
failure of a host that is known has a guard here and a test in `tests/lens/test_silent_failures.py`.
"""
