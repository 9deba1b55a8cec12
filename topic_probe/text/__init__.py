"""Where token batches come from."""
