"""`queen serve --workers N`: one process that owns the database and the sockets, and N that serve.

The workers listen on the same HTTP port, and the system deals the connections out. They are members of one cluster
that needs no configuration: each gets a UDP socket that is bound already, the addresses of the others, and the secret.
A worker that dies is started again. One whose parent is gone stops by itself, because its standard input ends.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from queenmq.clock import SYSTEM
from queenmq.cluster import transport
from queenmq.cluster.membership import Address
from queenmq.cluster.node import Siblings, require_secret
from queenmq.config import ClusterSettings, HttpSettings, Settings
from queenmq.errors import StartupError
from queenmq.journal.board import JournalBoard
from queenmq.journal.shared import JournalSharing
from queenmq.logs import log_to_stderr
from queenmq.server import Server

log = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 1.0
KILL_AFTER_S: Final = 10.0  # beyond the grace that running requests get
SECRET_BYTES: Final = 32
LOOK_AGAIN_S: Final = 0.05
DOOR: Final = ".sock"
LONGEST_SOCKET_NAME: Final = 100  # the system's limit is 108 bytes, or 104


class JournalOrder(msgspec.Struct):
    """Of the journal: its folder, the descriptor of its board, and where the worker that keeps it listens."""

    folder: str
    board: int
    socket: str
    listener: int | None  # only of the one that keeps it


class Order(msgspec.Struct):
    """What a worker reads from its standard input, which stays open while its parent lives."""

    url: str
    index: int
    workers: int
    udp_socket: int
    others: list[Address]
    secret: str
    host: str
    port: int
    log_level: str
    journal: JournalOrder | None


class Report(msgspec.Struct, omit_defaults=True):
    """What a worker says on its standard output: where it listens, or why it cannot."""

    address: Address | None = None
    error: str | None = None


@asynccontextmanager
async def serving(settings: Settings, url: str) -> AsyncIterator[Address]:
    """Run the workers; the address on which they listen. Raises StartupError if the first start of any fails."""
    require_secret(settings)
    with socket.socket(socket.AF_INET6 if ":" in settings.http.host else socket.AF_INET) as reserved:
        settings = replace(settings, http=replace(settings.http, port=_reserve(reserved, settings.http)))
        secret = settings.cluster.secret or os.urandom(SECRET_BYTES)
        async with AsyncExitStack() as stack:
            sockets = [
                stack.enter_context(_udp_socket(settings.cluster, index)) for index in range(settings.server.workers)
            ]
            addresses = [_address(bound) for bound in sockets]
            journal = None
            if settings.journal.folder is not None:
                journal = _Journal(settings.journal.folder, stack)
                await journal.become_the_only_one(settings)
            workers = [
                _Worker(
                    (bound.fileno(), *(() if journal is None else journal.descriptors(index))),
                    Order(
                        url=url,
                        index=index,
                        workers=settings.server.workers,
                        udp_socket=bound.fileno(),
                        others=[address for address in addresses if address != addresses[index]],
                        secret=secret.hex(),
                        host=settings.http.host,
                        port=settings.http.port,
                        log_level=settings.server.log_level,
                        journal=None if journal is None else journal.told(index),
                    ),
                    settings.http.shutdown_grace_s + KILL_AFTER_S,
                )
                for index, bound in enumerate(sockets)
            ]
            for worker in workers:
                stack.push_async_callback(worker.stop)
            # One after the other, so that the first brings the schema up to date and the rest find it so.
            listening = [await worker.start() for worker in workers]
            stack.callback(_cancel_all, [worker.watch() for worker in workers])
            yield listening[0]


def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def _reserve(reserved: socket.socket, http: HttpSettings) -> int:
    """Hold the port while workers come and go; it does not listen, so it gets no connections."""
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # For a minute the system remembers connections that a server of one process has closed, and that one shares its
    # port with nobody.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((http.host, http.port))
    except OSError as error:
        raise StartupError(f"cannot listen on {http.host}:{http.port}: {error.strerror}") from None
    return int(reserved.getsockname()[1])


def _udp_socket(cluster: ClusterSettings, index: int) -> socket.socket:
    """The first is where the configured peers send to; they learn of the others from its heartbeats."""
    if cluster.enabled and cluster.peers:
        return transport.listen(cluster if index == 0 else replace(cluster, udp_port=0))
    return transport.open_socket("127.0.0.1", 0, cluster.receive_buffer_mb)


def _address(bound: socket.socket) -> Address:
    host, port = bound.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


class _Journal:
    """What the workers share of their journal. It outlives each of them."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._board = JournalBoard.create()
        stack.callback(os.close, self._board)
        self._door = stack.enter_context(_door(folder))
        self._mark: tuple[int, ...] = ()
        self._stack = stack

    async def become_the_only_one(self, settings: Settings) -> None:
        """Wait for the workers of a parent that was killed: they finish their requests, and have the journal so long.

        Without that, the new workers would begin a journal beside it, and overtake what is in the old one. The mark is
        a lock that every worker inherits, so that it ends with the last of them.
        """
        mark = os.open(self._folder / f"workers-{settings.http.port}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._stack.callback(os.close, mark)
        deadline = SYSTEM.monotonic() + settings.http.shutdown_grace_s + KILL_AFTER_S
        told = False
        while not _lock(mark):
            if SYSTEM.monotonic() > deadline:
                log.error(
                    "workers of an earlier server on port %d still have its journal in %s; what is in it is stored "
                    "when they have ended and this server is started again",
                    settings.http.port,
                    self._folder,
                )
                return
            if not told:
                log.warning("waiting for the workers of an earlier server on port %d to end", settings.http.port)
                told = True
            await asyncio.sleep(LOOK_AGAIN_S)
        self._mark = (mark,)

    def descriptors(self, index: int) -> tuple[int, ...]:
        shared = (self._board, *self._mark)
        return (*shared, self._door.fileno()) if index == 0 else shared

    def told(self, index: int) -> JournalOrder:
        # The first worker is started before all others: when they start, everything is recovered.
        listener = self._door.fileno() if index == 0 else None
        return JournalOrder(str(self._folder), self._board, self._door.getsockname(), listener)


def _lock(descriptor: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _door(folder: Path) -> Iterator[socket.socket]:
    """The socket at which the worker that keeps the journal listens, also after it was started again."""
    with ExitStack() as stack:
        try:
            place = _place_of_door(folder)
            if place is None:
                place = Path(stack.enter_context(TemporaryDirectory(prefix="queen-"))) / "journal.sock"
            door = stack.enter_context(socket.socket(socket.AF_UNIX))
            door.bind(str(place))
            stack.callback(place.unlink, missing_ok=True)
            place.chmod(0o600)
        except OSError as error:
            raise StartupError(
                f"the workers cannot share the journal in {folder}: {error.strerror}; "
                f"name a folder with FILE_BUFFER_DIR that can be written and whose path is shorter than "
                f"{LONGEST_SOCKET_NAME - 20} bytes"
            ) from None
        door.listen()
        yield door


def _place_of_door(folder: Path) -> Path | None:
    """In the folder of the journal; None if its path is too long for a socket."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = folder.absolute() / f"workers-{os.getpid()}{DOOR}"
    if len(os.fsencode(place)) > LONGEST_SOCKET_NAME:
        return None
    for left in place.parent.glob(f"workers-*{DOOR}"):
        with socket.socket(socket.AF_UNIX) as probe:
            # Of a server that was killed.
            probe.setblocking(False)
            if probe.connect_ex(str(left)) == errno.ECONNREFUSED:
                left.unlink(missing_ok=True)
    return place


class _Worker:
    def __init__(self, descriptors: tuple[int, ...], order: Order, stop_within_s: float) -> None:
        self._descriptors = descriptors
        self._order = order
        self._stop_within_s = stop_within_s
        self._process: Process | None = None

    async def start(self) -> Address:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "queenmq.cli.workers"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=self._descriptors,
            # Ctrl-C in a terminal is for the parent, which stops its workers in order.
            start_new_session=True,
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("the worker has no pipes")
        stdin.write(msgspec.json.encode(self._order) + b"\n")
        line = await stdout.readline()
        report = msgspec.json.decode(line, type=Report) if line else Report()
        if report.address is None:
            await self._process.wait()
            raise StartupError(report.error or f"worker {self._order.index} ended while it was starting")
        return report.address

    def watch(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Start it again whenever it ends."""
        while True:
            if self._process is not None:
                status = await self._process.wait()
                log.error("worker %d ended with status %d; it is started again", self._order.index, status)
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                await self.start()
            except (StartupError, OSError) as error:
                log.error("worker %d could not be started again: %s", self._order.index, error)

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._stop_within_s)
        except TimeoutError:
            process.kill()
            await process.wait()


def main() -> int:
    """A worker process."""
    from queenmq import config
    from queenmq.cli import serve

    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    settings = config.load(
        flags={
            "HOST": order.host,
            "PORT": order.port,
            "LOG_LEVEL": order.log_level,
            "NUM_WORKERS": order.workers,
            "QUEEN_SYNC_SECRET": bytes.fromhex(order.secret),
        }
    )
    folder = None if order.journal is None else Path(order.journal.folder)
    # The setting counts for all workers together.
    pool_size = max(2, settings.database.pool_size // order.workers)
    settings = replace(
        settings,
        journal=replace(settings.journal, folder=folder),
        database=replace(settings.database, pool_size=pool_size),
    )
    log_to_stderr(settings)
    serve.run_until_signal(_work(settings, order))
    return 0


async def _work(settings: Settings, order: Order) -> None:
    bound = socket.socket(fileno=order.udp_socket)
    siblings = Siblings(order.index, bound, tuple(order.others))
    server = Server(settings, order.url, siblings, journal=_shared(order.journal))
    try:
        await server.start()
    except StartupError as error:
        _report(Report(error=error.message))
        return
    try:
        _report(Report(address=server.address))
        await _end_of_input()
        log.warning("the process that started this worker is gone")
    finally:
        await server.stop()


def _shared(order: JournalOrder | None) -> JournalSharing | None:
    if order is None:
        return None
    listener = None if order.listener is None else socket.socket(fileno=order.listener)
    return JournalSharing(JournalBoard(order.board), order.socket, listener)


def _report(report: Report) -> None:
    # If the parent was killed meanwhile, the end of the standard input says so.
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    raise SystemExit(main())
