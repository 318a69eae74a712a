"""Tests of creating and upgrading the schema."""
