"""The study of Driple: its fits, its figures, and what its page shows."""
