"""`queen serve`: its options. `queenmq.cli.serve` runs the server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from queenmq.cli.arguments import Kind, data_dir
from queenmq.cli.group import command as command_of
from queenmq.config import MOST_WORKERS

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
HIGHEST_PORT: Final = 65535


def _port(raw: str) -> int:
    if not raw.isdecimal() or int(raw) > HIGHEST_PORT:
        raise ValueError(f"{raw!r} is not a port between 0 and {HIGHEST_PORT}")
    return int(raw)


def _workers(raw: str) -> int:
    if not raw.isdecimal() or not 1 <= int(raw) <= MOST_WORKERS:
        raise ValueError(f"{raw!r} is not a number between 1 and {MOST_WORKERS}")
    return int(raw)


@command_of("serve", "queen serve", "DATABASE_URL=postgresql://queen@db/queen queen serve --workers 4")
@click.option("--host", metavar="ADDRESS", help="Address to listen on (HOST, default 127.0.0.1).")
@click.option("--port", type=Kind("PORT", _port), metavar="PORT", help="HTTP port to listen on (PORT, default 6632).")
@data_dir
@click.option(
    "--workers", type=Kind("N", _workers), metavar="N", help="Number of worker processes (NUM_WORKERS, default 1)."
)
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), help="Lowest level that is logged (LOG_LEVEL, default info)."
)
def command(
    host: str | None, port: int | None, data_dir: Path | None, workers: int | None, log_level: str | None
) -> int:
    """Run the server. Environment variables set everything else (docs/configuration.md)."""
    from queenmq import config
    from queenmq.cli import serve

    settings = config.load(
        flags={
            "HOST": host,
            "PORT": port,
            "QUEEN_DATA_DIR": data_dir,
            "LOG_LEVEL": log_level,
            "NUM_WORKERS": workers,
        }
    )
    return serve.run(settings)
