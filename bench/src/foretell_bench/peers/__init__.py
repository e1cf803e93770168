"""Other tools on the same jobs: what each answers, how long that takes, and what must be written to ask it."""
