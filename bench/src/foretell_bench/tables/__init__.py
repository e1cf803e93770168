"""Tables: what each benchmark runs and the figures it finds."""
