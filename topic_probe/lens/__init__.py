"""The only code that knows the classes of TransformerLens and Hugging Face."""
