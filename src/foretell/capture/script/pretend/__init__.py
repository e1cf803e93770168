"""What a script finds in place of the machine that it would train on: devices, drivers, other ranks, kernels and data."""
