"""The `queen` command."""
