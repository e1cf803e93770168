"""Design: which points are worth the seconds it takes to measure them."""
