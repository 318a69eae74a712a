"""Whole clusters in virtual time: seeded, without sockets, without sleeping."""
