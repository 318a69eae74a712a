"""Tests over HTTP against the real server and a real PostgreSQL."""
