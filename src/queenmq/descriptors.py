"""How many files and sockets this process may have open at once (`ulimit -n`)."""

from __future__ import annotations

import resource


def raise_limit(wanted: int) -> int:
    """Let this process open `wanted` files, or as many as the system lets it; returns how many it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (ValueError, OSError):
        return soft  # some systems have a lower limit that they do not tell
    return target


def open_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
