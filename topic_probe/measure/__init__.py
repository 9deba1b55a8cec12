"""Analyzers: each report stands beside the function that returns it."""
