"""Measure: a Workload on a real device → Records; the store that keeps them; which points to measure next."""
