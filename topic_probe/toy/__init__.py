"""The one-layer transformer of the paper: theory, model, training."""
