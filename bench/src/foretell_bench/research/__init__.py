"""Research: rivals to compare with, and our own model with parts taken away."""
