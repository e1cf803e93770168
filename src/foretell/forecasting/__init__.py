"""Forecasting: the composition. A workload goes in, what its step will cost comes out."""
