"""Campaigns: many measurements, on local devices or on Ray."""
