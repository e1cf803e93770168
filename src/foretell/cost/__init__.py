"""Cost: what each task of a program takes on a given device, in time and in memory of its own."""
