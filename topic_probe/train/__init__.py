"""Trainings of toys in their worlds, and of a BERT on text.

`bert` builds the model of Figure 5, `history` says how to train and what was recorded, `toy` trains toys, seeds of one
setting side by side, `text` a BERT by transformers' Trainer, `stages` reads from a history whether W_V was learned
first. Each module imports only from those before it.
"""
