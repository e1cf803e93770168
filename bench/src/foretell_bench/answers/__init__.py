"""A fixed table of questions through the public face of Foretell: the answers of two versions, compared digit for digit."""
