"""The pool: workloads of one operator, or of a few, and the shapes of them that are worth a measurement."""
