"""Sharding: how the cut of one tensor follows from the cuts of others, through a whole step."""
