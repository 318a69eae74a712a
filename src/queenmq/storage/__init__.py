"""The only package that opens a database connection."""
