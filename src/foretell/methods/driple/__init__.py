"""Driple: a graph network that predicts what a step consumes, and its transfer to new settings."""
