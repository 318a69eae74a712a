"""Connects commands to the server, and maps errors of the client to exit statuses."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from queenmq.cli import exits

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from queenmq.client import BlockingQueen, QueenError

URL_VARIABLE: Final = "QUEEN_URL"
TOKEN_VARIABLE: Final = "QUEEN_TOKEN"  # noqa: S105 - the name of a variable
CA_VARIABLE: Final = "QUEEN_CA_FILE"
DEFAULT_URL: Final = "http://127.0.0.1:6632"

# What Queen says of a path that it does not serve; others say nothing.
_NO_SUCH_CALL: Final = "Not found"
BY_ROLE: Final = "Insufficient permissions"  # the other refusals say by themselves what the token may not do

_COMPLETION_S: Final = 1.0
_MOST_COMPLETED: Final = 1000
_MOST_COMPARED: Final = 10_000

Function = TypeVar("Function", bound="Callable[..., Any]")


def server(function: Function) -> Function:
    """The options --server, --token and --cacert of a command; before it, they hold for any command that has them."""
    trusted = click.option(
        "--cacert",
        envvar=CA_VARIABLE,
        show_envvar=True,
        metavar="FILE",
        type=click.Path(),
        expose_value=False,
        callback=_remember_authority,
        help="File with the certificate of the authority that signed the server's, in PEM, if it is a private one.",
    )
    allowed = click.option(
        "--token",
        metavar="TOKEN|@FILE",
        expose_value=False,
        callback=_remember_token,
        help="Token for the server (QUEEN_TOKEN); other users see arguments, but not what is in a file.",
    )
    return click.option(
        "--server",
        envvar=URL_VARIABLE,
        default=DEFAULT_URL,
        show_envvar=True,
        show_default=True,
        metavar="URL",
        callback=_chosen_server,
        help="URL of the server; several URLs are separated by commas.",
    )(allowed(trusted(function)))


def _chosen_server(context: click.Context, param: click.Parameter, given: str) -> str:
    """What is said behind the command counts most, then what is said before it, then the variable."""
    return given if _said_here(context, param) else context.meta.get(URL_VARIABLE, given)


def _remember_authority(context: click.Context, param: click.Parameter, given: str | None) -> None:
    if _said_here(context, param) or CA_VARIABLE not in context.meta:
        context.meta[CA_VARIABLE] = given


def _remember_token(context: click.Context, _: click.Parameter, given: str | None) -> None:
    if given is not None:
        context.meta[TOKEN_VARIABLE] = given


def _said_here(context: click.Context, param: click.Parameter) -> bool:
    return context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE


def trusted_context() -> SSLContext | None:
    """Whose certificates are believed: those of the authority that --cacert or its variable names; None: the system's.

    Ends the command if the file cannot be used.
    """
    import ssl

    context = click.get_current_context(silent=True)
    named = os.environ.get(CA_VARIABLE) if context is None else context.meta.get(CA_VARIABLE)
    if not named:
        return None
    try:
        return ssl.create_default_context(cafile=named)
    except ssl.SSLError:
        raise exits.Failed(
            f"{CA_VARIABLE} or --cacert is not valid: {named} has no certificate in PEM format", exits.USAGE
        ) from None
    except OSError as error:
        raise exits.Failed(
            f"{CA_VARIABLE} or --cacert is not valid: {named} cannot be read: {error.strerror}", exits.USAGE
        ) from None


def token() -> str | None:
    """What --token says, or its variable. Ends the command if the file that it names is no use."""
    context = click.get_current_context(silent=True)
    given: str | None = None if context is None else context.meta.get(TOKEN_VARIABLE)
    if given is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    if not given.startswith("@"):
        return given or None
    try:
        return Path(given[1:]).read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise exits.Failed(f"--token is not valid: {given[1:]} cannot be read: {why}", exits.USAGE) from None


def servers(given: str) -> list[str]:
    """The URLs that --server or QUEEN_URL name."""
    named = [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
    if not named:
        raise exits.Failed(f"{URL_VARIABLE} or --server is not valid: it names no server", exits.USAGE)
    return named


def pause(seconds: float) -> None:
    """Wait before the next poll."""
    time.sleep(seconds)


@contextmanager
def connected(server: str, **options: Any) -> Iterator[BlockingQueen]:
    """A client of the server. Errors of the client in the block end the command with one sentence."""
    from queenmq.client import BlockingQueen, QueenError

    # The client logs its retries; here only the last error is shown.
    logging.getLogger("queenmq.client").addHandler(logging.NullHandler())
    given = {
        "bearer_token": token(),
        "ssl_context": trusted_context(),
        "retry_attempts": 2,
        "retry_attempts_429": 3,
    } | options
    try:
        queen = BlockingQueen(servers(server), **given)
    except ValueError as error:
        raise exits.Failed(f"{URL_VARIABLE} or --server is not valid: {error}", exits.USAGE) from None
    try:
        with queen:
            yield queen
    except QueenError as error:
        raise failure(error, server) from error


def failure(error: QueenError, server: str) -> exits.Failed:
    """The message and the exit status for an error of the client."""
    from queenmq.client import errors

    match error:
        case errors.Unauthenticated():
            advice = "the token that was given is not valid" if token() else f"set {TOKEN_VARIABLE}"
            return exits.Failed(f"the server requires a token ({error.message}); {advice}", exits.NOT_ALLOWED)
        case errors.Forbidden():
            of_role = error.message == BY_ROLE
            return exits.Failed(
                "the role of the token does not allow this" if of_role else error.message, exits.NOT_ALLOWED
            )
        case errors.NotFound() if error.body.get("error", _NO_SUCH_CALL) == _NO_SUCH_CALL:
            return exits.Failed(
                f"{server} is not the URL of a Queen server; `queen doctor` checks it", exits.UNAVAILABLE
            )
        case errors.NotFound():
            return exits.Failed(error.message, exits.NOT_FOUND)
        case errors.NetworkError():
            return exits.Failed(
                f"{error.message}; start a server with `queen serve`, or set {URL_VARIABLE} to another",
                exits.UNAVAILABLE,
            )
        case errors.InvalidResponse():
            return exits.Failed(f"{server} is not a Queen server: {error.message}", exits.UNAVAILABLE)
        case errors.Unavailable():
            told = f"the server is not available: {error.message}; `queen doctor` finds the cause"
            return exits.Failed(told, exits.UNAVAILABLE)
    return exits.Failed(error.message)


def no_queue(queen: BlockingQueen, name: str) -> NoReturn:
    """End the command because the queue does not exist, and suggest a similar name."""
    if queen.queue(name).timers(1):
        when = f"its timers make it when they push; `queen timers list {name}` shows them"
        raise exits.Failed(f"there is no queue {name!r} yet: {when}", exits.NOT_FOUND)
    names = [queue["name"] for queue in queen.admin.list_queues(limit=_MOST_COMPARED)["queues"]]
    near = get_close_matches(name, names, 1)
    meant = f"; did you mean {near[0]!r}?" if near else "; `queen queues` lists them"
    raise exits.Failed(f"there is no queue {name!r}{meant}", exits.NOT_FOUND)


def require_queue(queen: BlockingQueen, name: str) -> Mapping[str, Any]:
    """The queue as the server describes it, without its partitions."""
    from queenmq.client import NotFound

    try:
        found: Mapping[str, Any] = queen.admin.get_queue_detail(name, includePartitions=False)
    except NotFound:
        no_queue(queen, name)
    return found


def require_group(queen: BlockingQueen, name: str) -> None:
    """End the command unless a group of this name reads or has read something."""
    if queen.admin.get_consumer_group(name, limit=1):
        return
    names = sorted({group["name"] for group in queen.admin.list_consumer_groups(limit=_MOST_COMPARED)})
    if name not in names:
        near = get_close_matches(name, names, 1)
        meant = f"; did you mean {near[0]!r}?" if near else "; `queen groups` lists them"
        raise exits.Failed(f"there is no group {name!r}{meant}", exits.NOT_FOUND)


def note_new_group(queen: BlockingQueen, queue: str, name: str | None) -> None:
    """Say so if something was set for a group that does not exist: it may come, or its name is misspelt."""
    from queenmq.cli.show import note
    from queenmq.client import QueenError

    if name is None:
        return
    try:
        if queen.admin.get_consumer_group(name, limit=1):
            return
        names = {group["name"] for group in queen.admin.list_consumer_groups(queue=queue, limit=_MOST_COMPARED)}
    except QueenError:  # what was asked for is done
        return
    near = get_close_matches(name, names - {name}, 1)
    note(f"There is no group {name!r} yet{f'; did you mean {near[0]!r}?' if near else '.'}")


def queue_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For shell completion: the queues that begin with this text, or none if no server answers."""
    import json
    from urllib.parse import quote

    from queenmq.cli.fetch import fetch

    url = (ctx.params.get("server") or os.environ.get(URL_VARIABLE) or DEFAULT_URL).split(",")[0]
    try:
        path = f"/api/v1/resources/queues?limit={_MOST_COMPLETED}&search={quote(incomplete)}"
        found = json.loads(fetch(url, path, timeout_s=_COMPLETION_S).body)["queues"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [CompletionItem(queue["name"]) for queue in found if queue["name"].startswith(incomplete)]


def queue(function: Function) -> Function:
    """The argument that names a queue, with shell completion."""
    return click.argument("queue", shell_complete=queue_names)(function)


def queue_option(function: Function) -> Function:
    """The same as an option that narrows a listing."""
    return click.option("--queue", shell_complete=queue_names, help="Show only this queue.")(function)
