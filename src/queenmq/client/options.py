"""The options of a client: what they are called, their defaults, and which values make sense."""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from ssl import SSLContext
from typing import Literal, TypedDict
from urllib.parse import SplitResult, urlencode, urlsplit

from queenmq.client.errors import InvalidUse

_MOST_SAID = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
DEFAULT_URL = "http://127.0.0.1:6632"
# What the environment says to a client whose program names no server.
URL_VARIABLE = "QUEEN_URL"
TOKEN_VARIABLE = "QUEEN_TOKEN"  # noqa: S105 - the name of a variable
CA_VARIABLE = "QUEEN_CA_FILE"

Token = str | Callable[[], str]


class Options(TypedDict, total=False):
    """The keyword arguments of `Queen` and `BlockingQueen`; `ClientOptions` says what they mean."""

    bearer_token: Token | None
    headers: Mapping[str, str]
    name: str | None
    timeout_millis: int
    connect_timeout_millis: int
    retry_attempts: int
    retry_delay_millis: int
    retry_on_429: bool
    retry_attempts_429: int
    honor_retry_after: bool
    max_retry_delay: int
    queued_operation_behavior: Literal["return", "poll"]
    poll_timeout_millis: int
    load_balancing: Literal["failover", "round-robin"]
    server_cooldown_millis: int
    max_connections: int
    close_timeout_millis: int
    ssl_context: SSLContext | None


class QueueOptions(TypedDict, total=False):
    """The keyword arguments of `config`; docs/queue-options.md says what they mean."""

    lease_time: int
    max_size: int
    ttl: int | None
    retry_limit: int
    retry_delay: int
    dead_letter_queue: bool
    dlq_after_max_retries: bool
    priority: int
    delayed_processing: int
    window_buffer: int
    retention_seconds: int
    completed_retention_seconds: int
    retention_enabled: bool
    encryption_enabled: bool
    max_wait_time_seconds: int
    archive_before_delete: bool
    set_aside_failed_pushes: bool
    pop_wait_base_interval_ms: int | None
    pop_wait_max_interval_ms: int | None
    pop_wait_backoff_threshold: int | None
    pop_wait_backoff_multiplier: float | None


AckStatus = Literal["completed", "success", "failed", "retry", "dlq"]
SubscriptionMode = Literal["all", "new"]

RENEW_MILLIS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Times are in milliseconds."""

    bearer_token: Token | None = field(default=None, repr=False)
    """Sent as `Authorization: Bearer …`; a function is asked for every request, so that tokens can be renewed."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request."""
    name: str | None = None
    """How the client is called where consumers are shown: the name of the program by default. It is sent with the name
    of the host and the number of the process; an empty name sends nothing of this."""
    timeout_millis: int = 30_000
    """How long an attempt may take; a long poll gets its own waiting time and 5 s more."""
    connect_timeout_millis: int = 5_000
    retry_attempts: int = 5
    """How often a request is tried, on every server, when the network or the server (5xx) fails."""
    retry_delay_millis: int = 200
    """The pause after the first failure; it doubles with every further one and is jittered."""
    retry_on_429: bool = True
    retry_attempts_429: int = 10
    """How often a request is tried while the server answers 429."""
    honor_retry_after: bool = True
    """Wait as long as the server says in `Retry-After`, instead of the doubling pause."""
    max_retry_delay: int = 30_000
    """No pause is longer than this, whatever the server says."""
    queued_operation_behavior: Literal["return", "poll"] = "return"
    """What a 202 is to a caller: a result that says `accepted`, or something to wait for."""
    poll_timeout_millis: int = 30_000
    """How long "poll" waits before it raises OperationTimeout."""
    load_balancing: Literal["failover", "round-robin"] = "failover"
    """Use the first server that works, in the order given, or all that work in turn."""
    server_cooldown_millis: int = 5_000
    """How long a server that failed is left alone before one request tries it again."""
    max_connections: int = 1_000
    close_timeout_millis: int = 30_000
    """How long `close` waits for handlers that are at work."""
    ssl_context: SSLContext | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("timeout_millis", "connect_timeout_millis", "retry_attempts", "retry_attempts_429"):
            _at_least(name, getattr(self, name), 1)
        for name in ("retry_delay_millis", "max_retry_delay", "poll_timeout_millis", "close_timeout_millis"):
            _at_least(name, getattr(self, name), 0)
        _at_least("server_cooldown_millis", self.server_cooldown_millis, 0)
        _at_least("max_connections", self.max_connections, 1)
        if not callable(self.bearer_token):
            self.token()
        if self.queued_operation_behavior not in ("return", "poll"):
            raise InvalidUse("queued_operation_behavior must be 'return' or 'poll'")
        if self.load_balancing not in ("failover", "round-robin"):
            raise InvalidUse("load_balancing must be 'failover' or 'round-robin'")

    def consumer(self) -> str | None:
        """What the client says of itself in `X-Queen-Consumer`; None if it says nothing."""
        if self.name == "":
            return None
        name = self.name or Path(sys.argv[0] if sys.argv else "").name or "python"
        said = {"name": name, "host": socket.gethostname(), "process": str(os.getpid())}
        return urlencode({field: value[:_MOST_SAID] for field, value in said.items()})

    def token(self) -> str | None:
        """Without the white space around it that files have. Raises InvalidUse if it cannot be sent."""
        given: object = self.bearer_token() if callable(self.bearer_token) else self.bearer_token
        token = given.strip() if isinstance(given, str) else given
        if token is not None and (not isinstance(token, str) or _CONTROL.search(token)):
            # Not shown: it is a secret.
            raise InvalidUse("bearer_token must be text without control characters, such as line ends within it")
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    concurrency: int = 1
    batch: int | None = 1  # None: found by itself
    partitions: int | None = None
    group: str | None = None
    wait_millis: int = 30_000
    limit: int | None = None
    idle_millis: int | None = None
    each: bool = False
    auto_ack: bool | None = None
    renew_millis: int | None = RENEW_MILLIS
    ack_millis: int = 100
    prefetch: int = 0
    connection: bool | None = None
    name: str = ""
    queue: str | None = None
    handle_signals: bool = True


def _at_least(name: str, value: int, least: int) -> None:
    try:
        is_right = least <= value < float("inf")  # so that NaN fails, too
    except TypeError:
        is_right = False
    if not is_right:
        raise InvalidUse(f"{name} must be at least {least} and finite, not {value!r}")


def named(what: str, name: str) -> str:
    """Raises InvalidUse for a name that is empty: what is meant is something else than all, or the default."""
    if not isinstance(name, str) or not name:
        raise InvalidUse(f"the name of a {what} is a text that is not empty, not {name!r}")
    return name


def check_names(options: Options) -> None:
    """Raises InvalidUse if one of them is not an option of a client."""
    for name in options.keys() - Options.__annotations__.keys():
        near = "".join(f"; did you mean {meant}?" for meant in get_close_matches(name, Options.__annotations__, 1, 0.5))
        raise InvalidUse(f"a client has no option {name}{near}")


def said_by_environment(options: Options) -> tuple[list[str], Options]:
    """Where a client goes whose program names no server: QUEEN_URL, with QUEEN_TOKEN and QUEEN_CA_FILE.

    Only then, so that a token of the environment never reaches another server. What the program says counts more.
    """
    urls = [url.strip() for url in os.environ.get(URL_VARIABLE, "").split(",") if url.strip()]
    told: Options = {}
    if token := os.environ.get(TOKEN_VARIABLE):
        told["bearer_token"] = token
    if file := os.environ.get(CA_VARIABLE):
        try:
            told["ssl_context"] = ssl.create_default_context(cafile=file)
        except OSError as error:
            raise InvalidUse(f"{CA_VARIABLE} names {file}, which cannot be used: {error.strerror or error}") from None
    return urls, told | options


def timestamp(moment: str | datetime, name: str) -> str:
    """A moment as the wire says it. Raises InvalidUse if it has no time zone."""
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise InvalidUse(f"{name} must have a time zone, such as datetime.now(UTC) has: which moment is it else?")
    return moment.astimezone(UTC).isoformat()


def server_urls(
    servers: str | Sequence[str] | None, url: str | None = None, urls: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The servers in order, without trailing slashes and without repetitions."""
    given: list[str] = []
    for some in (servers, url, urls):
        given += [some] if isinstance(some, str) else some or ()
    cleaned = tuple(dict.fromkeys(one.rstrip("/") for one in given)) or (DEFAULT_URL,)
    for one in cleaned:
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_usable_port(parts):
            raise InvalidUse(f"not the URL of a server: {one!r}; one is {DEFAULT_URL!r}")
        if parts.username is not None or parts.query or parts.fragment:
            # Not shown: it may be a secret. URLs are logged.
            raise InvalidUse("the URL of a server has no user, query or fragment; a token goes into bearer_token")
    return cleaned


def _has_usable_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False
