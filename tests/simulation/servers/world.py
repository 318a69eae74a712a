"""One history: servers, PostgreSQL, disks and clients in one process and in virtual time, all from one seed.

The servers are real (`queenmq.server.Server`): application, broker with its lanes and long polls, journal, operation
worker. So are the clients and the workloads (`queenmq.verify`). Simulated are the event loop, PostgreSQL, what the disk
keeps, and the network between clients and servers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from server_settings import settings_with

from queenmq import ids
from queenmq.client import Queen
from queenmq.clock import SYSTEM, Clock, SystemClock
from queenmq.config import Settings
from queenmq.errors import QueenError, StartupError
from queenmq.journal.folder import JournalFolder
from queenmq.journal.push_journal import PushJournal
from queenmq.server import Server
from queenmq.services.database_watch import DatabaseWatch
from queenmq.services.journal_replay import JournalReplay
from queenmq.services.load_monitor import LoadMonitor
from queenmq.services.operation_worker import OperationWorker
from queenmq.services.service import Service
from queenmq.verify import Verdict, check, lines
from queenmq.verify.clients import RETRY_LIMIT, Load
from queenmq.verify.history import History
from queenmq.verify.recorder import Recorder
from queenmq.verify.workload import WORKLOADS
from simulation.servers.clients import SimulatedClients, late, parked
from simulation.servers.disk import Disk
from simulation.servers.loop import LIFE, Life, SimulatedLoop
from simulation.servers.network import Network, SimulatedFront, SimulatedTransport
from simulation.servers.postgres import SimulatedDatabase, SimulatedPostgres, Weather
from simulation.servers.statements import EPOCH, Statements
from simulation.servers.tables import Queue, Tables

PARKED = "parked"
PLAYED = ("log", "lease", "transaction", "pipeline", "deduplication", "dead-letters", "journal", "overload", PARKED)
QUEUE = "simulated"
_DISK_S = (0.0001, 0.004)
_LONGEST_S = 900.0
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class Outcome:
    seed: int
    workload: str
    history: History
    verdict: Verdict
    complaints: list[str]
    trace: str
    events: Counter[str]
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.verdict.is_valid and not self.complaints

    def described(self) -> str:
        found = [f"{one.rule}: {one.text} (operations {one.ops})" for one in self.verdict.violations[:5]]
        return "\n".join([f"seed {self.seed}, workload {self.workload}", *found, *self.complaints[:5]])


class SimulatedServer(Server):
    """With the services that carry messages."""

    def _make_services(self, clock: Clock, *, is_first: bool) -> Iterator[Service]:
        wanted = (DatabaseWatch, LoadMonitor, OperationWorker, JournalReplay)
        return (one for one in super()._make_services(clock, is_first=is_first) if isinstance(one, wanted))


@dataclass(eq=False)
class Process:
    """A server and its folder, through all of its lives."""

    url: str
    settings: Settings
    folder: Path
    life: Life
    server: SimulatedServer | None = None
    folders: list[JournalFolder] = field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return self.server is not None and self.server.front.is_listening and not self.life.ended


class World:
    def __init__(self, seed: int, folder: Path, workload: str | None = None) -> None:
        self.chance = Random(seed)
        self.seed = seed
        self.workload = workload or self.chance.choice(PLAYED)
        self.events: Counter[str] = Counter()
        self._digest = hashlib.sha256()
        self.loop = SimulatedLoop(lambda: self.chance.uniform(*_DISK_S))
        self.loop.power_cut = self._cut_off
        self.disk = Disk(self.chance)
        tables = Tables(self.loop.time, lambda: str(self._uuid()))
        self.postgres = SimulatedPostgres(self.loop, self.chance, Statements(tables), self.note)
        self.network = Network(self.chance, self.note)
        self._folder = folder
        servers = 1 if self.workload == PARKED else self.chance.choice((1, 1, 2))
        self.processes = [self._process(number) for number in range(servers)]
        self._is_calm = False

    def note(self, what: str, *about: object) -> None:
        self.events[what] += 1
        self._digest.update(f"{self.loop.time():.6f} {what} {about}\n".encode())

    def _uuid(self) -> Any:
        return ids.uuid7()

    def _process(self, number: int) -> Process:
        folder = self._folder / f"server-{number}"
        busy = self.workload == "overload"
        rarely = {"wait_initial_interval_ms": _HOUR_MS, "wait_max_interval_ms": _HOUR_MS}
        settings = settings_with(
            http={"shutdown_grace_s": self.chance.choice((0, 2))},
            journal={
                "folder": None if self.workload != "journal" and self.chance.random() < 0.2 else folder,
                "max_records": 40 if self.chance.random() < 0.3 else 100_000,
            },
            database={
                "pool_size": 4,
                "outage_after_ms": 1000,
                "ping_ms": 500,
                "connection_timeout_ms": 2000,
                "lock_timeout_ms": 1500,
            },
            pop=rarely if self.workload == PARKED else {},
            cluster={"server_id": f"server-{number}"},
            overload={"wait_threshold_ms": 30, "standing_wait_ms": 5, "standing_after_ms": 50} if busy else {},
        )
        return Process(f"http://server-{number}", settings, folder, Life(""))

    # Processes

    async def start(self, process: Process) -> None:
        process.life = Life(process.url)
        process.folders = []
        context = Context()
        context.run(LIFE.set, process.life)
        self.note("start", process.url)
        started = self.loop.create_task(self._start(process), context=context)
        # Not awaited: a power cut may end it at any moment.
        while not started.done() and not process.life.ended:
            await asyncio.sleep(0.01)
        if started.done():
            started.result()

    async def _start(self, process: Process) -> None:
        process.server = SimulatedServer(process.settings, "postgresql://simulated/queen")
        await process.server.start()

    def kill(self, process: Process, *, cut_power: bool) -> None:
        if process.life.ended and not cut_power:
            return
        self.note("power cut" if cut_power else "kill", process.url)
        self.loop.kill(process.life)
        self.network.died(process.life)
        if process.server is not None:
            self.postgres.disconnect(process.server.database)
        for folder in process.folders:
            folder.release()
        if cut_power and process.folder.exists():
            self.disk.cut_power(process.folder)

    def _cut_off(self, life: Life) -> None:
        for process in self.processes:
            if process.life is life:
                self.kill(process, cut_power=True)

    async def stop(self, process: Process) -> None:
        """In order."""
        server = process.server
        if server is None or process.life.ended:
            return
        self.note("stop", process.url)
        context = Context()
        context.run(LIFE.set, process.life)
        stopping = self.loop.create_task(server.stop(), context=context)
        while not stopping.done() and not process.life.ended:
            await asyncio.sleep(0.01)
        self.network.died(process.life)

    # What goes wrong

    async def trouble(self) -> None:
        """Until it is calm: one thing after the other, some of them at once."""
        chance = self.chance
        if self.workload == PARKED:
            self.postgres.weather = Weather(slow=0.05)
            return
        share = chance.choice((0.0, 0.005, 0.02))
        self.postgres.weather = Weather(
            slow=chance.choice((0.0, 0.01, 0.05)), lost=share, deadlocks=chance.choice((0.0, 0.01))
        )
        self.network.lost = chance.choice((0.0, 0.01, 0.03))
        self.disk.is_dangerous = chance.random() < 0.5
        kinds = [self._crash, self._restart, self._outage, self._stranger, self._full_disk]
        kinds = chance.sample(kinds, chance.randint(1, len(kinds)))
        running: set[asyncio.Task[None]] = set()
        while not self._is_calm:
            await asyncio.sleep(chance.expovariate(1.0))
            task = self.loop.create_task(chance.choice(kinds)())
            running.add(task)
            task.add_done_callback(running.discard)
        while running:
            await asyncio.wait(running)

    async def _crash(self) -> None:
        process = self.chance.choice(self.processes)
        if process.is_up:
            self.kill(process, cut_power=self.chance.random() < 0.5)
            await asyncio.sleep(self.chance.uniform(0.05, 2))

    async def _restart(self) -> None:
        process = self.chance.choice(self.processes)
        if process.is_up:
            await self.stop(process)
            self.kill(process, cut_power=False)

    async def _outage(self) -> None:
        if not self.postgres.is_away:
            self.note("outage")
            self.postgres.go_away()
            await asyncio.sleep(self.chance.uniform(0.1, 4))
            self.postgres.is_away = False

    async def _stranger(self) -> None:
        """Somebody locks rows in a transaction of his own, and keeps it open."""
        parts = list(self.postgres.statements.tables.partitions.values())
        if parts:
            part = self.chance.choice(parts)
            rows = [("head", part.id), *(("position", part.id, group) for group in part.groups)]
            owner = object()
            held = self.postgres.statements.tables.held
            self.postgres.lock(owner, [row for row in self.chance.sample(rows, 1) if row not in held])
            self.note("stranger")
            await asyncio.sleep(self.chance.uniform(0.02, 3))
            self.postgres.unlock(owner)

    async def _full_disk(self) -> None:
        self.note("full disk")
        self.disk.is_full = True
        await asyncio.sleep(self.chance.uniform(0.1, 2))
        self.disk.is_full = False

    def calm(self) -> None:
        self._is_calm = True
        self.postgres.weather = Weather()
        self.network.lost = 0.0
        self.disk.is_dangerous = False

    async def _keep_up(self) -> None:
        """Whatever dies is started again, and again if it cannot start."""
        while True:
            for process in self.processes:
                if process.life.ended:
                    try:
                        await self.start(process)
                    except StartupError:  # as on a full disk
                        self.kill(process, cut_power=False)
            await asyncio.sleep(0.05)

    # A history

    async def run(self) -> History:
        self.postgres.statements.tables.queues[QUEUE] = Queue(
            QUEUE, lease_s=2, retry_limit=RETRY_LIMIT, retry_delay_s=0.01
        )
        for process in self.processes:
            await self.start(process)
        keeping = self.loop.create_task(self._keep_up())
        recorder = Recorder(SYSTEM)
        single: Any = {"retry_attempts": 1, "retry_on_429": False, "timeout_millis": 10_000}
        urls = [process.url for process in self.processes]
        load = Load(
            seconds=60 if self.workload == PARKED else self.chance.uniform(3, 8),
            producers=self.chance.randint(1, 4),
            consumers=self.chance.randint(1, 4),
            partitions=self.chance.choice((1, 2, 4)),
            batch=self.chance.choice((1, 3, 10)),
            rate=0 if self.workload == PARKED else self.chance.choice((20, 60, 120)),
            seed=self.seed,
        )
        async with AsyncExitStack() as stack:
            stack.callback(lambda: keeping.done() and keeping.result())  # what has ended it is the cause of all else
            queen = await stack.enter_async_context(Queen(urls, **single))
            each = {url: await stack.enter_async_context(Queen(url, **single)) for url in urls}
            clients = SimulatedClients(self, queen, each, QUEUE, load, recorder)
            troubling = self.loop.create_task(self.trouble())
            await (WORKLOADS | {PARKED: parked})[self.workload](clients)
            self.calm()
            await troubling
            await clients.end()
        keeping.cancel()
        for process in self.processes:
            await self.stop(process)
        return recorder.history

    def play(self) -> Outcome:
        """Run it in a loop of its own, with everything replaced that would make it differ from run to run."""
        with self._replaced(), _errors_of_servers() as errors:
            asyncio.set_event_loop(self.loop)
            try:
                history = self.loop.run_until_complete(asyncio.wait_for(self.run(), _LONGEST_S))
            finally:
                for process in self.processes:
                    self.loop.kill(process.life)
                    for folder in process.folders:
                        folder.release()
                complaints = [*self.loop.complaints, *errors]
                self.loop.bury()
                asyncio.set_event_loop(None)
                self.loop.close()
        if self.workload == PARKED:
            complaints += late(history)
        for line in lines(history):
            self._digest.update(line.encode())
        return Outcome(
            self.seed,
            self.workload,
            history,
            check(history),
            complaints,
            self._digest.hexdigest(),
            self.events,
            self.loop.time(),
        )

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        taken = JournalFolder.take.__func__  # type: ignore[attr-defined]
        source = Random(self.seed)
        state = random.getstate()
        with ExitStack() as stack:

            def replace(target: str, value: Any) -> None:
                stack.enter_context(patch(target, value))

            replace("os.urandom", source.randbytes)
            replace("os.fdatasync", self.disk.sync)
            replace("os.fsync", self.disk.sync)
            replace("queenmq.core.consumer._KEY", source.randbytes(32))
            replace("queenmq.server.Database", partial(SimulatedDatabase, postgres=self.postgres))
            replace("queenmq.server.HttpFront", partial(SimulatedFront, self._listens))
            replace("queenmq.server.migrate", _nothing_to_migrate)
            replace("queenmq.client.session.Transport", partial(SimulatedTransport, self.network))
            replace("queenmq.client.caller.Random", partial(Random, self.seed))
            stack.enter_context(patch.object(SystemClock, "monotonic", self.loop.time))
            stack.enter_context(patch.object(SystemClock, "wall", lambda *_: EPOCH.timestamp() + self.loop.time()))
            stack.enter_context(patch.object(ids, "_source", ids.Uuid7Source()))
            stack.enter_context(
                patch.object(JournalFolder, "take", classmethod(lambda cls, path: self._took(taken(cls, path))))
            )
            random.seed(self.seed)
            try:
                yield
            finally:
                random.setstate(state)

    def _listens(self, front: SimulatedFront) -> None:
        for process in self.processes:
            if process.life is front.life:
                self.network.fronts[process.url] = front

    def _took(self, folder: JournalFolder | None) -> JournalFolder | None:
        life = LIFE.get()
        for process in self.processes:
            if process.life is life and folder is not None:
                process.folders.append(folder)
        return folder

    def journals(self) -> list[PushJournal]:
        found = [process.server.broker.journal for process in self.processes if process.server and process.is_up]
        return [one for one in found if isinstance(one, PushJournal)]


async def _nothing_to_migrate(_database: object) -> None:
    """The model has the tables of this version."""


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, QueenError | OSError):
            self.found.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def _errors_of_servers() -> Iterator[list[str]]:
    """What servers log as errors that nobody has foreseen."""
    handler, logger = _Errors(), logging.getLogger("queenmq")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def play(seed: int, workload: str | None = None) -> Outcome:
    """The history of a seed; without a workload, that of the seed."""
    with tempfile.TemporaryDirectory(prefix="queen-simulation-") as folder:
        return World(seed, Path(folder), workload).play()
