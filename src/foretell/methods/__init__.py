"""Methods: the published systems and ours, each behind one protocol, so that they can be compared on the same rows."""
