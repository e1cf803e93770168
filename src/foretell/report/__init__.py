"""Reports: a forecast as a person reads it, in the terminal (`tables`) or as one HTML file (`html`)."""
