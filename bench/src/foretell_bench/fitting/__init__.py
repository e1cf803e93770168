"""Fits of what the catalog ships: how links of each kind perform in collectives."""
