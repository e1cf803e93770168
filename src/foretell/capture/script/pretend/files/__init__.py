"""Stand-ins for files that are not on this machine: each is what the script then does with it."""
