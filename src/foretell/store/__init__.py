"""The store: records of measurements, kept as Parquet and asked with DuckDB."""
