"""Data sets by name that are not on this machine: known ones as they are published, others as the script uses them."""
