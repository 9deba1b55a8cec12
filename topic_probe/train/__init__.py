"""Training: toys in their worlds, and a small BERT on text.

`bert` builds the model of Figure 5, `history` says how to train and what was recorded, `tasks` are what the loop knows
of a toy (the loss of a fresh batch with its gradients), `stack` computes that for several toys at once, `loop` trains
toys, `text` trains a BERT by transformers' Trainer, `stages` reads from a history whether W_V was learned first. Each
module imports only from those before it.
"""
