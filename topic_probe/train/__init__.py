"""Training: one loop for toys and for text."""
