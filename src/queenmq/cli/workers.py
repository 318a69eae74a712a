"""`queen serve --workers N`: one process that owns the database and the sockets, and N that serve.

The workers listen on the same HTTP port, and the system deals the connections out. They are members of one cluster
that needs no configuration: each gets a UDP socket that is bound already, the addresses of the others, and the secret.
A worker that dies is started again. One whose parent is gone stops by itself, because its standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from queenmq.cluster import transport
from queenmq.cluster.membership import Address
from queenmq.cluster.node import Siblings, require_secret
from queenmq.config import Settings
from queenmq.errors import StartupError
from queenmq.logs import log_to_stderr
from queenmq.server import Server

log = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 1.0
KILL_AFTER_S: Final = 10.0  # beyond the grace that running requests get
SECRET_BYTES: Final = 32


class Order(msgspec.Struct):
    """What a worker is told on its standard input, which stays open while its parent lives."""

    url: str
    index: int
    workers: int
    udp_socket: int
    others: list[Address]
    secret: str
    host: str
    port: int
    log_level: str
    journal: str | None


class Report(msgspec.Struct, omit_defaults=True):
    """What a worker says on its standard output: where it listens, or why it cannot."""

    address: Address | None = None
    error: str | None = None


@asynccontextmanager
async def serving(settings: Settings, url: str) -> AsyncIterator[Address]:
    """Run the workers; the address on which they listen. Raises StartupError if the first start of any fails."""
    require_secret(settings)
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as reserved:
        settings = replace(settings, port=_reserve(reserved, settings))
        secret = settings.sync_secret or os.urandom(SECRET_BYTES)
        async with AsyncExitStack() as stack:
            sockets = [stack.enter_context(_udp_socket(settings, index)) for index in range(settings.workers)]
            addresses = [_address(bound) for bound in sockets]
            workers = [
                _Worker(
                    bound,
                    Order(
                        url=url,
                        index=index,
                        workers=settings.workers,
                        udp_socket=bound.fileno(),
                        others=[address for address in addresses if address != addresses[index]],
                        secret=secret.hex(),
                        host=settings.host,
                        port=settings.port,
                        log_level=settings.log_level,
                        journal=None if settings.file_buffer_dir is None else str(settings.file_buffer_dir),
                    ),
                    settings.shutdown_grace_s + KILL_AFTER_S,
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


def _reserve(reserved: socket.socket, settings: Settings) -> int:
    """Hold the port while workers come and go; it does not listen, so it gets no connections."""
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((settings.host, settings.port))
    except OSError as error:
        raise StartupError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    return int(reserved.getsockname()[1])


def _udp_socket(settings: Settings, index: int) -> socket.socket:
    """The first is where the configured peers send to; they learn of the others from its heartbeats."""
    if settings.sync_enabled and settings.udp_peers:
        return transport.listen(settings if index == 0 else replace(settings, udp_port=0))
    return transport.open_socket("127.0.0.1", 0, settings.sync_receive_buffer_mb)


def _address(bound: socket.socket) -> Address:
    host, port = bound.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


class _Worker:
    def __init__(self, bound: socket.socket, order: Order, stop_within_s: float) -> None:
        self._socket = bound
        self._order = order
        self._stop_within_s = stop_within_s
        self._process: Process | None = None

    async def start(self) -> Address:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "queenmq.cli.workers"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=(self._socket.fileno(),),
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
    settings = config.load(host=order.host, port=order.port, log_level=order.log_level, workers=order.workers)
    settings = replace(
        settings,
        sync_secret=bytes.fromhex(order.secret),
        file_buffer_dir=None if order.journal is None else Path(order.journal),
        # The setting counts for all workers together.
        db_pool_size=max(2, settings.db_pool_size // settings.workers),
    )
    log_to_stderr(settings)
    serve.run_until_signal(_work(settings, order))
    return 0


async def _work(settings: Settings, order: Order) -> None:
    bound = socket.socket(fileno=order.udp_socket)
    server = Server(settings, order.url, Siblings(order.index, bound, tuple(order.others)))
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


def _report(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def _end_of_input() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    raise SystemExit(main())
