"""The H200 dataset: which steps are measured, how, how records are packed, and what the dataset is like."""
