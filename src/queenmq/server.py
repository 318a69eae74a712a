"""One Queen server: database, cluster, broker, background services and HTTP front, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import queenmq
from queenmq.access.tokens import REVOKED
from queenmq.broker.broker import Broker
from queenmq.broker.outbox import SENT
from queenmq.broker.schemas import CHANGED
from queenmq.broker.wake_ups import FINISHED_ELSEWHERE, WRITTEN_ELSEWHERE
from queenmq.clock import SYSTEM, Clock
from queenmq.cluster.node import Node, Siblings
from queenmq.config import Settings
from queenmq.descriptors import open_limit, raise_limit
from queenmq.errors import DatabaseUnavailable, QueenError
from queenmq.http.app import App, make_context
from queenmq.http.coordinated import CoordinatedApp
from queenmq.http.forwarder import Forwarder
from queenmq.http.peer_requests import PeerRequests
from queenmq.http.route import Context
from queenmq.http.shares import charge_repeated, why_not_repeat
from queenmq.http.telemetry import telemetry
from queenmq.httpserver.front import HttpFront
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request
from queenmq.httpserver.origins import Origins
from queenmq.journal.push_journal import PushJournal
from queenmq.journal.shared import JournalSharing
from queenmq.reports.reading import Reports
from queenmq.services.audit import AuditKeeper
from queenmq.services.database_watch import DatabaseWatch, unhide
from queenmq.services.expiry import Expiry
from queenmq.services.journal_replay import JournalReplay
from queenmq.services.load_monitor import LoadMonitor
from queenmq.services.operation_worker import OperationWorker
from queenmq.services.outbox import OutboxPush
from queenmq.services.planning import Planning
from queenmq.services.promotions import Promotions
from queenmq.services.quotas import QuotaRefresh
from queenmq.services.retention import Eviction, Retention
from queenmq.services.sampler import Sampler
from queenmq.services.service import Service
from queenmq.services.shared_state import SharedStateRefresh
from queenmq.services.statistics import StatisticsRefresh
from queenmq.services.timer_floor_check import TimerFloorCheck
from queenmq.services.timers import TimerPush
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database
from queenmq.storage.failures import DatabaseAway
from queenmq.storage.migrations import migrate
from queenmq.storage.statements import function_set, statement
from queenmq.storage.steps import migrations
from queenmq.tls import Tls

log = logging.getLogger(__name__)

_SERVICE_ENDS_S: Final = 10.0
_OWN_FILES: Final = 64  # the journal, logs, listening sockets, the event loop, what Python opens
# How many of its intervals a server may miss to say that it is there before it counts as gone.
_ALIVE_FOR_INTERVALS: Final = 3


class Server:
    """Serves HTTP on top of the PostgreSQL at `database_url`; with siblings, as one of several worker processes, which
    have one journal."""

    def __init__(
        self,
        settings: Settings,
        database_url: str,
        siblings: Siblings | None = None,
        clock: Clock = SYSTEM,
        journal: JournalSharing | None = None,
    ) -> None:
        self._settings = settings
        self._shares_port = siblings is not None
        self._epoch: int | None = None
        self.database = Database(settings.database, database_url)
        self.node = Node(settings, clock, siblings)
        self.broker = Broker(settings, self.database, self.node, clock, journal)
        self.database.on_notice(WRITTEN_ELSEWHERE, self.broker.written_elsewhere)
        self.database.on_notice(FINISHED_ELSEWHERE, self.broker.long_polls.freed_elsewhere)
        tls = Tls.from_settings(settings.tls, clock)
        self._forwarder = (
            Forwarder(settings.coordinator, self.node, clock, tls) if settings.coordinator.enabled else None
        )
        self._origins = Origins.from_settings(settings)
        limits = _limits(settings)
        memory = HttpMemory.within(limits, tls)
        context = make_context(self.broker, Reports(self.database, settings.limits.max_searches), memory, clock)
        self._app = self._make_app(context)
        self.database.on_notice(REVOKED, self._app.revoked)
        self.database.on_notice(CHANGED, self.broker.schemas.notice)
        self._telemetry = telemetry(context)
        handle = self._app.handle if self._telemetry is None else self._telemetry.traced(self._app.handle)
        admit: Callable[[Request], Awaitable[object]] = self._app.admit
        if self._forwarder is not None:
            passed_on = PeerRequests(
                self.node.ring,
                self._forwarder.name,
                handle,
                admit,
                certified_only=tls is not None and tls.peers_show_certificates,
            )
            handle, admit = passed_on.handle, passed_on.admit
        self.front = HttpFront(handle, limits, clock, admit=admit, origins=self._origins, memory=memory)
        self.front.on_stop.append(self.broker.end_long_polls)
        if self._forwarder is not None:
            self.front.on_stop.append(self._forwarder.end_long_polls)
        # Workers share a port, so that none of them can be reached by it alone.
        self._peer_front: HttpFront | None = None
        if self._shares_port and self._forwarder is not None:
            self._peer_front = HttpFront(handle, limits, clock, admit=admit, memory=memory.shared(limits))
        self._shared_state = SharedStateRefresh(self.database, self.node, self.broker.refresh, settings.cache, clock)
        is_first = siblings is None or siblings.index == 0
        self._audit = context.audit
        self.broker.timers.on_repeated = partial(charge_repeated, context)
        self.broker.timers.why_not_repeat = partial(why_not_repeat, context)
        self._quotas = context.quotas
        self._services = [self._shared_state, *self._make_services(clock, is_first=is_first)]

    def _make_services(self, clock: Clock, *, is_first: bool) -> Iterator[Service]:
        """`is_first`: of several workers, the one that does what need be done once a server."""
        settings, broker, database = self._settings, self.broker, self.database
        yield DatabaseWatch(database, settings.database, self._come_up, clock)
        yield LoadMonitor(database, broker.load, broker.vitals, settings.overload, clock)
        yield OperationWorker(database, broker.operation_runner, broker.operations, clock, settings.operations)
        yield TimerPush(broker.timers, settings.timers, clock)
        outbox = OutboxPush(broker.outbox, settings.outbox, clock)
        database.on_notice(SENT, outbox.notice)
        yield outbox
        yield StatisticsRefresh(broker.statistics, broker.long_polls.registry, settings.statistics, clock)
        yield Sampler(
            broker,
            settings.statistics,
            clock,
            port=settings.http.port,
            worker_id=settings.server.worker_id,
            slots=settings.database.pool_size,
        )
        if isinstance(broker.journal, PushJournal):
            yield JournalReplay(
                database,
                broker.journal,
                settings.journal,
                clock,
                store=broker.store_accepted,
                operations=broker.operations,
                switches=broker.caches.switches,
                locks=broker.locks,
                most_messages=settings.lanes.max_items_per_call,
            )
        yield AuditKeeper(self._audit, clock)
        yield Expiry(self.broker.keys, clock)
        yield QuotaRefresh(self._quotas, broker.statistics, clock)
        if is_first:
            yield Retention(broker.operation_runner, settings.retention, clock)
            yield Eviction(database, broker.activity, settings.retention, clock)
            yield Vacuum(database, settings.database, clock)
            yield TimerFloorCheck(broker.timers.floor, clock)
            yield Planning(database, clock)
            yield Promotions(database, clock)

    def _make_app(self, context: Context) -> App:
        if self._forwarder is None:
            return App(context, self._origins)
        return CoordinatedApp(context, self._origins, self._forwarder)

    @property
    def address(self) -> tuple[str, int]:
        return self.front.address

    async def start(self) -> None:
        """Raises StartupError; whatever was started by then is stopped again. A database that is away is waited for."""
        try:
            if self.broker.journal is not None:
                await self.broker.journal.open()
            try:
                await self._come_up()
            except DatabaseAway as error:
                log.error("%s; the server starts without the database and keeps trying to connect", error)
            await self.front.start(self._settings.http.host, self._settings.http.port, shared=self._shares_port)
            await self._announce()
            self._say_how_many_connections()
            for service in self._services:
                service.start()
            if self._telemetry is not None:
                self._telemetry.start()
        except BaseException:
            await self.stop()
            raise

    def _say_how_many_connections(self) -> None:
        """When it listens, so that a start that fails says only why."""
        wanted = Limits.of(self._settings.http, self._settings.server.workers).max_connections
        taken = self.front.limits.max_connections
        if taken < wanted:
            log.log(
                # Many systems allow a little less than the default: nobody has to do anything about that.
                logging.WARNING if taken < wanted // 2 else logging.INFO,
                "this process may open %d files (ulimit -n), so it takes %d HTTP connections at once instead of %d "
                "(QUEEN_MAX_CONNECTIONS)",
                *(open_limit(), taken, wanted),
            )

    async def _reachable_at(self) -> tuple[str, int]:
        """Where other servers reach this one and no other."""
        if self._peer_front is None:
            return self.front.address
        if not self._peer_front.is_listening:
            await self._peer_front.start(self._settings.http.host, 0)
        return self._peer_front.address

    async def _come_up(self) -> None:
        """Use the database from now on, for the first time or again. Raises StartupError, and goes on without."""
        try:
            await self.database.open()
            await self._first_contact()
            await self._shared_state.work()
        except DatabaseUnavailable as error:
            self.database.abandon()
            raise DatabaseAway(str(error)) from error
        except BaseException:
            self.database.abandon()
            raise

    async def _first_contact(self) -> None:
        await migrate(self.database)  # also after an outage: others may have upgraded the schema meanwhile
        if self.node.is_open:
            return
        await unhide(self.database)  # the clock may have been set back while no server was there to notice
        self._epoch = await self._register()
        await self.node.open(self._epoch, self.broker)
        await self._announce()

    async def _register(self) -> int:
        """Say which server this is, and of which version. Returns its boot epoch."""
        epoch: int = await self.database.fetchval(
            statement("register_server"),
            self.node.server_id,
            queenmq.__version__,
            migrations()[-1].version,
            function_set().name,
            self._settings.cache.refresh_interval_ms / 1000 * _ALIVE_FOR_INTERVALS,
        )
        return epoch

    async def _sign_off(self) -> None:
        if self._epoch is not None and self.database.is_open:
            with suppress(QueenError):
                await self.database.fetchval(statement("server_stopped"), self.node.server_id, self._epoch)

    async def _announce(self) -> None:
        if self.node.is_open and self.front.is_listening:
            self.node.announce(await self._reachable_at())

    async def stop(self) -> None:
        """Let running requests finish within the grace, then close everything.

        What does not end in its time is named in the log and left behind: nothing that was accepted depends on it.
        """
        await self.front.stop(self._settings.http.shutdown_grace_s)
        if self._peer_front is not None:
            await self._peer_front.stop(self._settings.http.shutdown_grace_s)
        if self._forwarder is not None:
            self._forwarder.close()
        for service in self._services:
            await _ended(service.name, service.stop(), _SERVICE_ENDS_S)
        if self._telemetry is not None:
            await _ended("telemetry", self._telemetry.stop(), _SERVICE_ENDS_S)
        if self.database.is_open:
            await _ended("audit log", self._audit.close(), _SERVICE_ENDS_S)
        # Calls that were submitted are waited for, and a statement has a time of its own.
        statement_s = self._settings.database.statement_timeout_ms / 1000
        await _ended("broker", self.broker.close(), statement_s + _SERVICE_ENDS_S)
        await _ended("cluster", self.node.close(), _SERVICE_ENDS_S)
        await _ended("registration", self._sign_off(), _SERVICE_ENDS_S)
        await self.database.close()


def _limits(settings: Settings) -> Limits:
    """The bounds of the HTTP front, with as many connections as there are descriptors that nothing else needs."""
    limits = Limits.of(settings.http, settings.server.workers)
    own = _OWN_FILES + settings.database.pool_size
    others = len(settings.cluster.peers) + settings.server.workers - 1
    to_others = settings.coordinator.max_connections * others if settings.coordinator.enabled else 0
    files = raise_limit(limits.files + own + to_others)
    return limits.within(files - own - min(to_others, files // 4))


async def _ended(what: str, ending: Coroutine[Any, Any, None], within_s: float) -> None:
    task = asyncio.get_running_loop().create_task(ending)
    await asyncio.wait((task,), timeout=within_s)
    if task.done():
        task.result()
        return
    waits_for = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
    log.error("%s did not stop within %g s and is abandoned; it waits at %s", what, within_s, ", ".join(waits_for))
    task.cancel()
