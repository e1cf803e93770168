"""Transfer: what public measurements teach about devices nobody here has measured."""
