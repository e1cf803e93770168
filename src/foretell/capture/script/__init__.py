"""An unmodified training script → Graph: run as `__main__` on an accelerator that is not there, until its third step."""
