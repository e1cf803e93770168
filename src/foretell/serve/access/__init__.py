"""Who may ask what, and how much of it."""
