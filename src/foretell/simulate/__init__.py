"""Simulation: Program + durations → Timeline; Graph → MemoryTrace. Knows no cost model."""
