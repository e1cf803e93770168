"""The study of PredictDDL: its fits, its figures, and what its page shows."""
