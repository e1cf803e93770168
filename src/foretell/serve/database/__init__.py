"""What the service keeps: SQLite by default, PostgreSQL by its URL, migrated when it is opened."""
