"""Jobs that run for their own sake: their steps beside their forecast, and when the two part."""
