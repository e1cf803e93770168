"""What no forecast may break, measured or not: laws, checked over steps, devices, precisions and plans."""
