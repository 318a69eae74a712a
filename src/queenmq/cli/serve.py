"""`queen serve`: brings up the database and then the server, says where, and takes both down again.

SIGINT and SIGTERM end it at any moment, also while the database is still starting; the order is always
server first, then database. Further signals change nothing, so the shutdown is never cut short.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import ipaddress
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvloop

import queenmq
from queenmq.cli.effective import doubts, in_effect
from queenmq.config import Settings
from queenmq.errors import StartupError
from queenmq.logs import log_to_stderr
from queenmq.server import Server
from queenmq.storage.connecting import dsn, place_of
from queenmq.storage.embedded import EmbeddedPostgres, default_data_dir
from queenmq.tls import Tls

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXAMPLE_ITEMS = '{"items":[{"queue":"hello","payload":{"text":"world"}}]}'


def run(settings: Settings) -> int:
    log_to_stderr(settings)
    for doubt in doubts(settings):
        log.warning("%s", doubt)
    run_until_signal(_serve(settings))
    return 0


def with_journal(settings: Settings, url: str) -> Settings:
    """The same with the folder of the journal, unless none is configured and the default cannot be used.

    By default each database has its own: what was accepted for one must never be replayed into another.
    """
    if settings.journal.folder is not None:
        return settings
    parent = (settings.server.data_dir or default_data_dir()) / "journal"
    place = "bundled" if settings.database.is_bundled else hashlib.sha256(place_of(url).encode()).hexdigest()
    folder = parent / place[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        log.warning("%s cannot be written: pushes are refused while the database is away; set FILE_BUFFER_DIR", folder)
        return settings
    for other in sorted({file.parent.parent for file in parent.glob("*/*/*.journal")} - {folder}):
        log.warning(
            "%s has pushes that were accepted for the database at another address and are not replayed into this one: "
            "a server with that address replays them; if it is this database, name the folder once as FILE_BUFFER_DIR",
            other,
        )
    return replace(settings, journal=replace(settings.journal, folder=folder))


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or cancel it at the first SIGINT or SIGTERM."""
    _collect_seldom()
    uvloop.run(_until_signal(work))


def _collect_seldom() -> None:
    """Requests make few cycles but many objects: with Python's defaults the search for cycles takes up to a tenth of
    the processor, and makes the longest pauses. What is loaded by now stays and need not be searched."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 50)


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    serving = asyncio.create_task(work)
    stop = _StopOnce(serving)
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await serving
    except asyncio.CancelledError:
        log.info("stopped")
    finally:
        # The loop would bring the default handlers back for its last moments.
        _ignore_signals()


class _StopOnce:
    def __init__(self, serving: asyncio.Task[None]) -> None:
        self._serving = serving
        self._stopping = False

    def __call__(self, number: signal.Signals) -> None:
        if self._stopping:
            log.info("already stopping")
            return
        self._stopping = True
        log.info("%s: stopping", number.name)
        self._serving.cancel()


def _ignore_signals() -> None:
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _serve(settings: Settings) -> None:
    require_protection(settings)
    require_free_port(settings.http.host, settings.http.port)
    async with _database(settings) as (url, place), _serving(with_journal(settings, url), url) as address:
        _say(announcement(address, place, settings))
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[tuple[str, str]]:
    """The URL of the database and where it is, in words without a password."""
    if not settings.database.is_bundled:
        url = dsn(settings.database)
        yield url, f"Database: {place_of(url)}"
        return
    bundled = EmbeddedPostgres(settings.server.data_dir or default_data_dir(), keep_off=settings.http.port)
    url = await bundled.start()
    try:
        yield url, f"Data: {bundled.data_dir} (bundled PostgreSQL)"
    finally:
        await bundled.stop()


@asynccontextmanager
async def _serving(settings: Settings, url: str) -> AsyncIterator[tuple[str, int]]:
    """The address on which this process, or its workers, listen."""
    if settings.server.workers > 1:
        from queenmq.cli import workers

        async with workers.serving(settings, url) as address:
            yield address
        return
    server = Server(settings, url)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


def require_protection(settings: Settings) -> None:
    """Everyone who reaches the port can read and delete everything, unless tokens are required; and everyone on the way
    can read the tokens, unless there is TLS. Raises StartupError, also if the TLS files cannot be used."""
    speaks_tls = Tls.from_settings(settings.tls) is not None
    if settings.auth.insecure or _is_loopback(settings.http.host):
        return
    if settings.auth.required and not speaks_tls and not settings.tls.allow_plain_http:
        raise StartupError(
            f"HOST {settings.http.host} is reachable from other machines, but the server has no TLS, so tokens and "
            "messages could be read on their way; set QUEEN_TLS_CERT_FILE and QUEEN_TLS_KEY_FILE, listen on 127.0.0.1, "
            "or set QUEEN_ALLOW_PLAIN_HTTP=true if a proxy in front has TLS or the network is protected"
        )
    if settings.auth.required:
        return
    raise StartupError(
        f"HOST {settings.http.host} is reachable from other machines, but the server requires no token; "
        "set QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true, listen on 127.0.0.1, or set QUEEN_INSECURE=true if the "
        "network is protected"
    )


def _is_loopback(host: str) -> bool:
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in _resolve(host, 0))


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartupError(f"HOST {host!r} is not an address of this machine: {error}") from None
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def require_free_port(host: str, port: int) -> None:
    """Fail before the database is started for nothing. The server finds out for certain later."""
    addresses = _resolve(host, port)
    failures = [error for family, address in addresses if (error := _bind_error(family, address))]
    # A name may stand for addresses of which this machine has only some (localhost without IPv6).
    telling = [error for error in failures if error.errno != errno.EADDRNOTAVAIL]
    if telling or len(failures) == len(addresses):
        reason = (telling or failures)[0].strerror
        raise StartupError(f"cannot listen on {_authority((host, port))}: {reason}; choose another with HOST and PORT")


def _bind_error(family: socket.AddressFamily, address: tuple[str, int]) -> OSError | None:
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error
    return None


def announcement(address: tuple[str, int], place: str, settings: Settings) -> str:
    scheme = "http" if settings.tls.certificate is None else "https"
    local = f"{scheme}://{_authority((_reachable(address[0]), address[1]))}"
    token = ' -H "Authorization: Bearer $TOKEN"' if settings.auth.required else ""
    json_type = "-H 'Content-Type: application/json'"
    folder = f" --data-dir {shlex.quote(str(settings.server.data_dir))}" if settings.server.data_dir else ""
    first = f"The first token: queen token create root --role admin --in-database{folder}\n"
    return (
        f"Queen {queenmq.__version__} listens on {scheme}://{_authority(address)}\n"
        f"{place}\n"
        f"In effect: {', '.join(in_effect(settings))}\n"
        f"{first if settings.auth.required else ''}"
        "Try it:\n"
        f"  curl{token} {local}/api/v1/push {json_type} -d '{EXAMPLE_ITEMS}'\n"
        f"  curl{token} '{local}/api/v1/pop/queue/hello?autoAck=true'\n"
        "Ctrl-C stops."
    )


def _authority(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except (OSError, ValueError):
        # stdout is closed; text left in the buffer must not fail the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
