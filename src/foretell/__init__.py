"""Foretell: what a training step will cost, before it runs."""
__version__ = "0.1.0"
