"""Figures and pages, drawn from what was measured."""
