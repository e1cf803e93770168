"""Several ranks that measure one step together."""
