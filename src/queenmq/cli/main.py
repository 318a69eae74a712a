"""The command `queen`: its root, and how problems are told to people.

An expected problem is one sentence on stderr and an exit status that means something (see `exits`), never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

import queenmq
from queenmq.cli import exits
from queenmq.cli.commands import KNOWN
from queenmq.cli.group import LazyGroup
from queenmq.errors import StartupError

COMPLETION_VARIABLE: Final = "_QUEEN_COMPLETE"
TRACEBACK_VARIABLE: Final = "QUEEN_TRACEBACK"


def _version(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"queen {queenmq.__version__}")
        raise SystemExit(exits.OK)


queen = LazyGroup(
    "queen",
    known=KNOWN,
    package="queenmq.cli.commands",
    help=(
        "A message queue on PostgreSQL. QUEEN_URL names the server (default http://127.0.0.1:6632), QUEEN_TOKEN has "
        "the token for one that demands it. `queen COMMAND --help` shows examples."
    ),
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version and exit.",
        )
    ],
)
queen.examples = (
    "queen serve",
    """queen push orders '{"id": 1}' --partition customer-7""",
    "queen pop orders --group billing --ack",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `queen` and return the exit status. Raises SystemExit for arguments that cannot be used."""
    _ensure_streams()
    try:
        status = queen.main(arguments, "queen", COMPLETION_VARIABLE, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else exits.OK
    except click.UsageError as error:
        _show_usage(error)
        raise SystemExit(exits.USAGE) from None
    except click.ClickException as error:
        return _tell(error.format_message(), exits.FAILED)
    except exits.Failed as error:
        return _tell(error.message, error.status)
    except StartupError as error:
        return _tell(error.message, exits.FAILED)
    except (KeyboardInterrupt, click.Abort):
        return exits.INTERRUPTED
    except BrokenPipeError:
        return _without_reader()
    except Exception as error:
        if _shows_tracebacks(arguments):
            raise
        told = f"a defect of Queen ({type(error).__name__}: {error}); {TRACEBACK_VARIABLE}=true shows where it is"
        return _tell(told, exits.FAILED)


def _shows_tracebacks(arguments: Sequence[str] | None) -> bool:
    """A server's end that nobody foresaw belongs into its log as a whole."""
    given = sys.argv[1:] if arguments is None else arguments
    return "serve" in given[:1] or os.environ.get(TRACEBACK_VARIABLE) == "true"


def _show_usage(error: click.UsageError) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return
    if error.ctx is not None:
        print(error.ctx.get_usage(), file=sys.stderr)
    print(f"queen: {exits.plain(error.format_message())}", file=sys.stderr)
    if error.ctx is not None:
        print(f"`{error.ctx.command_path} --help` shows how it is used.", file=sys.stderr)


def _tell(message: str, status: int) -> int:
    print(f"queen: {exits.plain(message)}", file=sys.stderr)
    return status


def _without_reader() -> int:
    """Whoever read our output has gone, as `head` does. What is left in the buffer must not fail the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exits.FAILED


def _ensure_streams() -> None:
    """Somebody may start us with stdin or stdout closed; the text then has nowhere to go, which is no error."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for the life of the process
