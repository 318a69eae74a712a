"""The command `queen`: its root, and how errors are reported.

An expected error prints one sentence to stderr and sets the exit status (see `exits`); it never prints a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import click

import queenmq
from queenmq.cli import exits, extras
from queenmq.cli.commands import KNOWN
from queenmq.cli.group import OF_SERVERS, LazyGroup
from queenmq.core.flags import parse_flag
from queenmq.errors import StartupError

COMPLETION_VARIABLE: Final = "_QUEEN_COMPLETE"
TRACEBACK_VARIABLE: Final = "QUEEN_TRACEBACK"


def _version(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    if wanted:
        print(f"queen {queenmq.__version__}")
        raise SystemExit(exits.OK)


def _remember(context: click.Context, param: click.Parameter, given: str | None) -> None:
    """Keep what is given before the command for the command; see `remote`."""
    if given is not None:
        context.meta[OF_SERVERS[param.opts[0]]] = given


def _for_every_command(name: str, metavar: str, told: str) -> click.Option:
    return click.Option([name], metavar=metavar, expose_value=False, callback=_remember, help=told)


queen = LazyGroup(
    "queen",
    known=KNOWN,
    package="queenmq.cli.commands",
    help=(
        "A message queue on PostgreSQL. QUEEN_URL or --server is the URL of the server (default "
        "http://127.0.0.1:6632), and QUEEN_TOKEN or --token the token, if the server requires one. `queen COMMAND -h` "
        "shows examples."
    ),
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="Show the version and exit.",
        ),
        _for_every_command("--server", "URL", "URL of the server; several URLs are separated by commas."),
        _for_every_command(
            "--token", "TOKEN|@FILE", "Token for the server; other users see arguments, but not what is in a file."
        ),
        _for_every_command("--cacert", "FILE", "Certificate of the authority that signed the server's, in PEM."),
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
        if isinstance(error, ModuleNotFoundError) and (missing := extras.sentence(error)) is not None:
            return _tell(missing, exits.FAILED)
        if _shows_tracebacks(arguments):
            raise
        told = f"internal error ({type(error).__name__}: {error}); {TRACEBACK_VARIABLE}=true shows the traceback"
        return _tell(told, exits.FAILED)


def _shows_tracebacks(arguments: Sequence[str] | None) -> bool:
    """An unexpected end of a server is logged with its traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    return "serve" in given[:1] or _wants_tracebacks(os.environ.get(TRACEBACK_VARIABLE, ""))


def _wants_tracebacks(raw: str) -> bool:
    try:
        return raw != "" and parse_flag(raw)
    except ValueError:
        # A value that is not a flag still means that the user wants more details.
        return True


def _show_usage(error: click.UsageError) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return
    if error.ctx is not None:
        print(error.ctx.get_usage(), file=sys.stderr)
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        error.possibilities[:] = [one for one in error.possibilities if _is_near(error.option_name, one)]
    print(f"queen: {exits.plain(error.format_message())}", file=sys.stderr)
    if error.ctx is not None:
        print(f"`{error.ctx.command_path} --help` shows the usage.", file=sys.stderr)


def _is_near(typed: str, option: str) -> bool:
    """The dashes, which all options have, make short names seem alike."""
    return bool(get_close_matches(typed.lstrip("-"), [option.lstrip("-")]))


def _tell(message: str, status: int) -> int:
    print(f"queen: {exits.plain(message)}", file=sys.stderr)
    return status


def _without_reader() -> int:
    """The reader of the output has closed it, as `head` does. Text left in the buffer must not fail the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exits.FAILED


def _ensure_streams() -> None:
    """The process may be started with stdin or stdout closed; that is not an error."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for the life of the process
