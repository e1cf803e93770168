"""Memory of real training steps on a CUDA device: measured, packed, and compared with forecasts."""
