"""Compiled steps on a real device: what Inductor's scheduler made of them, and how long each kernel took."""
