"""The scenarios, a module for each kind, and in `catalogue` the list of all."""
