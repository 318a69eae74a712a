"""Whole servers in virtual time: real clients, broker, journal and operations over a model of PostgreSQL.

`python -m simulation.servers --seeds 1000` runs many histories; docs/proof.md says what is real and what is not.
"""
