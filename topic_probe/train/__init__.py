"""One training loop, for toys in their worlds and for a BERT on text.

`bert` builds the model of Figure 5, `history` says how to train and what was recorded, `tasks` are what the loop knows
of a model and its data (the loss of a fresh batch with its gradients), `stack` computes that for several toys at once,
`loop` trains, records, resumes and survives Ctrl-C, `stages` reads from a history whether W_V was learned first. Each
module imports only from those before it. To train something else, write a `Task`.
"""
