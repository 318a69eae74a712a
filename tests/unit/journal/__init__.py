"""The journal, the load manager and the estimates, without a database."""
