"""The routes by topic."""
