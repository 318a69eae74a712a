"""Background loops, one a file."""
