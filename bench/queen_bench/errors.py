"""What ends a benchmark early."""

from __future__ import annotations


class BenchError(Exception):
    """The run cannot go on: the server refused, vanished or answered what it must not."""


class PeerMissing(BenchError):
    """A peer cannot run here; the text says what to install."""
