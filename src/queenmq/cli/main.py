"""The command `queen`: its arguments, and how problems are told to people.

An expected problem (StartupError) is one sentence on stderr and exit status 1, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import queenmq
from queenmq.cli import bench, pipeline
from queenmq.config import MOST_WORKERS
from queenmq.errors import StartupError

LOG_LEVELS = ("debug", "info", "warning", "error")
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    _ensure_stdout()
    given = _parser().parse_args(arguments)
    try:
        return _run(given)
    except StartupError as error:
        print(f"queen: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(given: argparse.Namespace) -> int:
    # Imported here, so that `--help` is quick and Ctrl-C while loading is quiet.
    if given.command == "serve":
        from queenmq.cli import serve

        return serve.run(given)
    if given.command == "admin":
        from queenmq.cli import admin

        return admin.run(given)
    if given.command == "bench":
        return bench.run(given)
    if given.command == "pipeline":
        return pipeline.run(given)
    from queenmq.cli import db

    return db.run(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="queen", description="A message queue on PostgreSQL.")
    parser.add_argument("--version", action="version", version=f"queen {queenmq.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_serve(commands)
    _add_db(commands)
    _add_admin(commands)
    bench.add(commands)
    pipeline.add(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser(
        "serve", help="run the server", description="Run the server; settings come from the environment too."
    )
    serve.add_argument("--host", help="address to listen on (HOST, default 127.0.0.1)")
    serve.add_argument("--port", type=_port, help="HTTP port (PORT, default 6632)")
    _add_data_dir(serve)
    serve.add_argument("--workers", type=_workers, help="processes that serve (NUM_WORKERS, default 1)")
    serve.add_argument("--log-level", choices=LOG_LEVELS, help="least level to log (LOG_LEVEL, default info)")


def _add_db(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    database = commands.add_parser("db", help="about the bundled PostgreSQL")
    actions = database.add_subparsers(dest="action", required=True, metavar="action")
    url = actions.add_parser("url", help="print the connection URL of the one that runs on the data folder")
    _add_data_dir(url)


def _add_admin(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    admin = commands.add_parser("admin", help="check and mend what the database keeps, while servers run")
    actions = admin.add_subparsers(dest="action", required=True, metavar="action")
    check = actions.add_parser("check-lookup", help="report stale rows of partition_lookup; exit status 1 if any")
    resync = actions.add_parser("resync-lookup", help="rebuild partition_lookup from the messages")
    for parser in (check, resync):
        _add_data_dir(parser)


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, help="folder of the bundled PostgreSQL (QUEEN_DATA_DIR)", metavar="FOLDER"
    )


def _port(raw: str) -> int:
    if not raw.isdecimal() or int(raw) > 65535:
        raise argparse.ArgumentTypeError(f"{raw!r} is not a port between 0 and 65535")
    return int(raw)


def _workers(raw: str) -> int:
    if not raw.isdecimal() or not 1 <= int(raw) <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{raw!r} is not a number between 1 and {MOST_WORKERS}")
    return int(raw)


def _ensure_stdout() -> None:
    """Somebody may start us with stdout closed; the text then has nowhere to go, which is no error."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for the life of the process
