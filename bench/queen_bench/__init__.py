"""The benchmark: a load generator that audits every message, its scenarios, and adapters for other brokers."""
