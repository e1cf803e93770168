"""Long work, kept in the database before it is accepted, and done by whoever holds its lease."""
