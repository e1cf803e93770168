"""The study of ScaleDL: its fits, its figures, and what its page shows."""
