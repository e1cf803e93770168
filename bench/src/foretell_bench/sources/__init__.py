"""Sources: one file per public source of measurements."""
