"""PostgreSQL as servers see it: statements that take their time, wait for locks, and lose their answers.

The answers come from `statements`. A statement goes on although the one who sent it is gone, as on a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Any

import asyncpg

from queenmq.config import DatabaseSettings
from queenmq.errors import DatabaseUnavailable
from queenmq.storage import database as real
from queenmq.storage.database import Database
from queenmq.storage.failures import DatabaseAway
from simulation.servers.statements import Row, Statements
from simulation.servers.tables import Blocked, LockedRow

_LATENCY_S = (0.0005, 0.005)
_SLOW_S = (0.05, 1.5)
_ZOMBIE_S = 1.5
_PATIENCE_S = 5.0
COMMIT = "COMMIT"
# Where the lock_timeout is among the arguments.
_LAST = ("push_or_queue", "transact", "ack", "renew", "release", "pop_leased")


@dataclass(slots=True)
class Weather:
    """How often things go wrong with a statement."""

    slow: float = 0.0
    lost: float = 0.0
    deadlocks: float = 0.0


@dataclass(slots=True, eq=False)
class Call:
    connection: SimulatedConnection
    name: str
    arguments: tuple[Any, ...]
    answer: asyncio.Future[list[Row]]
    fate: str
    life: int  # of PostgreSQL: nothing that runs outlives it
    deadline: asyncio.TimerHandle | None = None
    is_done: bool = False  # only its answer is on the way
    goes_on: bool = False  # although its connection is broken

    def lock_timeout_s(self) -> float:
        if self.name in _LAST:
            return int(self.arguments[-1]) / 1000
        if self.name == "hold_operations":
            return int(self.arguments[2]) / 1000
        return int(self.arguments[5]) / 1000 if self.name == "subscribe" else _PATIENCE_S


class SimulatedPostgres:
    """`note` gets a line for everything that happens, for the trace."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, chance: Random, statements: Statements, note: Callable[..., None]
    ) -> None:
        self._loop = loop
        self._chance = chance
        self._note = note
        self._context = Context()
        self._calls: dict[Call, None] = {}  # sent, and not answered
        self._waiting: list[Call] = []  # for locks
        self.statements = statements
        self.weather = Weather()
        self.is_away = False
        self.away_times = 0
        self.connections: dict[SimulatedConnection, None] = {}

    # Statements

    def send(self, connection: SimulatedConnection, name: str, arguments: tuple[Any, ...]) -> asyncio.Future[list[Row]]:
        answer: asyncio.Future[list[Row]] = self._loop.create_future()
        call = Call(connection, name, arguments, answer, self._fate(), self.away_times)
        self._calls[call] = None
        self._later(self._latency(call.fate), self._arrive, call)
        return answer

    def _fate(self) -> str:
        dice, weather = self._chance.random(), self.weather
        for fate, share in (
            ("slow", weather.slow),
            ("lost before", weather.lost),
            ("lost after", weather.lost),
            ("goes on", weather.lost),
            ("deadlock", weather.deadlocks),
        ):
            if dice < share:
                return fate
            dice -= share
        return "fine"

    def _latency(self, fate: str = "fine") -> float:
        return self._chance.uniform(*(_SLOW_S if fate == "slow" else _LATENCY_S))

    def _later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, callback, *arguments, context=self._context)

    def _arrive(self, call: Call) -> None:
        if self.is_away or call.life != self.away_times or (call.connection.is_broken and not call.goes_on):
            self._lose(call)
            return
        match call.fate:
            case "lost before":
                self._lose(call)
            case "deadlock":
                self._fail(call, asyncpg.DeadlockDetectedError("deadlock detected"))
            case "goes on":
                self._later(self._chance.uniform(0, _ZOMBIE_S), self._execute, call)
                self._lose(call, goes_on=True)
            case _:
                self._execute(call)

    def _execute(self, call: Call) -> None:
        if call.life != self.away_times:
            return
        try:
            rows = call.connection.apply(call.name, call.arguments)
        except Blocked as blocked:
            self._note("blocked", call.name, *sorted(blocked.rows))
            if call.deadline is None:
                call.deadline = self._later(call.lock_timeout_s(), self._give_up, call)
            self._waiting.append(call)
            return
        except asyncpg.PostgresError as error:
            self._fail(call, error)
            return
        if call.deadline is not None:
            call.deadline.cancel()
        call.is_done = True
        self._note("done", call.name, call.fate)
        if call.name == COMMIT or call.goes_on:
            self.unlock(call.connection)
        if call.fate == "lost after":
            self._later(self._latency(), self._lose, call)
        else:
            self._later(self._latency(call.fate), self._answer, call, rows)

    def _give_up(self, call: Call) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
            self._fail(call, asyncpg.LockNotAvailableError("canceling statement due to lock timeout"))

    def _answer(self, call: Call, rows: list[Row]) -> None:
        if self._calls.pop(call, call) is None and not call.answer.done():
            call.answer.set_result(rows)

    def _fail(self, call: Call, error: Exception) -> None:
        self._note("failed", call.name, type(error).__name__)
        if call.goes_on:
            self.unlock(call.connection)
        if self._calls.pop(call, call) is None and not call.answer.done():
            call.answer.set_exception(error)

    def _lose(self, call: Call, *, goes_on: bool = False) -> None:
        """Its connection breaks."""
        self._note("lost", call.name, call.fate)
        self._calls.pop(call, None)
        call.connection.is_broken, call.goes_on = True, goes_on
        if not goes_on:
            call.connection.roll_back()
            if call in self._waiting:
                self._waiting.remove(call)
        if not call.answer.done():
            call.answer.set_exception(asyncpg.ConnectionDoesNotExistError("connection was closed"))

    # Locks

    def lock(self, owner: object, rows: list[LockedRow]) -> None:
        for row in rows:
            self.statements.tables.held[row] = owner

    def unlock(self, owner: object) -> None:
        held = self.statements.tables.held
        rows = [row for row, of in held.items() if of is owner]
        for row in rows:
            del held[row]
        if rows:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                self._later(0.0, self._execute, call)

    # Outages

    def go_away(self) -> None:
        """Every connection breaks. What is answered was committed; of what is not, some was."""
        self.is_away = True
        self.away_times += 1
        self._waiting.clear()
        for connection in list(self.connections):
            connection.terminate()
        for call in list(self._calls):
            self._lose(call)

    def disconnect(self, database: Database) -> None:
        """A server has died or given its connections up. What runs on them goes on."""
        for connection in [one for one in self.connections if one.database is database]:
            del self.connections[connection]
            busy = [call for call in self._calls if call.connection is connection]
            for call in busy:
                self._lose(call, goes_on=not call.is_done and self._chance.random() < 0.5)
            if not busy:
                connection.terminate()


@dataclass(slots=True, eq=False)
class SimulatedConnection:
    """What the server uses of an asyncpg connection. In a transaction, changes are made at its commit."""

    database: SimulatedDatabase
    postgres: SimulatedPostgres
    pool: object
    is_broken: bool = False
    in_use: bool = False
    bounded: bool = True
    _todo: list[tuple[str, tuple[Any, ...]]] | None = None
    proxy: object = None
    uses: int = field(default=0)

    def apply(self, name: str, arguments: tuple[Any, ...]) -> list[Row]:
        statements = self.postgres.statements
        tables = statements.tables
        tables.owner = self
        try:
            if name == COMMIT:
                for each, given in self._todo or ():
                    statements.run(each, given)
                self._todo = None
                return []
            if self._todo is None:
                return statements.run(name, arguments)
            return self._in_transaction(statements, name, arguments)
        finally:
            tables.owner = None

    def _in_transaction(self, statements: Statements, name: str, arguments: tuple[Any, ...]) -> list[Row]:
        if self._todo is None:
            raise AssertionError("no transaction")
        if name == "hold_operations":
            tables = statements.tables
            heads = {("head", tables.operations[one].partition.id) for one in arguments[1]}
            held = [row for row in heads if tables.is_held(*row)]
            if held:
                raise Blocked(held)
            self.postgres.lock(self, sorted(heads))
            return statements.run(name, arguments)
        self._todo.append((name, arguments))
        return statements.push_now(*arguments, only_asked=True) if name == "push_now" else []

    async def ask(self, text: str, arguments: tuple[Any, ...]) -> list[Row]:
        if self.is_broken:
            raise asyncpg.ConnectionDoesNotExistError("connection is closed")
        name = text if text == COMMIT else self.postgres.statements.named(text)
        return await self.postgres.send(self, name, arguments)

    async def fetch(self, text: str, *arguments: Any) -> list[Row]:
        return await self.ask(text, arguments)

    async def execute(self, text: str, *arguments: Any) -> None:
        await self.ask(text, arguments)

    async def fetchrow(self, text: str, *arguments: Any) -> Row | None:
        return next(iter(await self.ask(text, arguments)), None)

    async def fetchval(self, text: str, *arguments: Any) -> Any:
        row = await self.fetchrow(text, *arguments)
        return None if row is None else next(iter(row.values()))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._todo = []
        try:
            yield
            await self.ask(COMMIT, ())
        except BaseException:
            if not self.is_broken:  # else it was rolled back, or its commit goes on
                self.roll_back()
            raise

    def is_in_transaction(self) -> bool:
        return self._todo is not None

    def is_closed(self) -> bool:
        return self.is_broken

    def roll_back(self) -> None:
        self._todo = None
        self.postgres.unlock(self)

    def terminate(self) -> None:
        self.is_broken = True
        self.roll_back()


class SimulatedDatabase(Database):
    """The real one, without its pool and sockets: statements are repeated and errors translated as usual."""

    def __init__(self, settings: DatabaseSettings, url: str, postgres: SimulatedPostgres) -> None:
        super().__init__(settings, url)
        self._postgres = postgres
        self._free: list[SimulatedConnection] = []
        self._made = 0
        self._queue: list[asyncio.Future[None]] = []

    async def open(self) -> None:
        await asyncio.sleep(_LATENCY_S[1])
        if self._postgres.is_away:
            raise DatabaseAway("cannot connect to PostgreSQL: connection refused")
        self._pool = object()  # type: ignore[assignment]
        self._made = 0
        self.opened += 1

    async def is_alive(self, within_s: float) -> bool:
        await asyncio.sleep(within_s if self._postgres.is_away else _LATENCY_S[1])
        return not self._postgres.is_away

    def abandon(self) -> None:
        self._pool = None
        self._free.clear()
        self._postgres.disconnect(self)
        waiting, self._queue = self._queue, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def _borrow(self) -> Any:
        while True:
            pool = self._pool
            if pool is None:
                raise DatabaseUnavailable
            while self._free:
                connection = self._free.pop()
                if not connection.is_broken and connection.pool is pool:
                    return connection
                self._made -= 1
            if self._made < self._settings.pool_size:
                if self._postgres.is_away:
                    raise ConnectionRefusedError("connection refused")
                self._made += 1
                connection = SimulatedConnection(self, self._postgres, pool)
                self._postgres.connections[connection] = None
                return connection
            await self._wait()

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._settings.lock_timeout_ms / 1000):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._next()  # it came in the same moment
            raise
        finally:
            self.waiting -= 1

    async def _give_back(self, connection: Any, *, is_clean: bool) -> None:
        if connection.pool is not self._pool:
            return
        if is_clean and not connection.is_broken:
            self._free.append(connection)
        else:
            connection.terminate()
            self._postgres.connections.pop(connection, None)
            self._made -= 1
        self._next()

    def _next(self) -> None:
        """Let the next one that waits for a connection have it."""
        while self._queue:
            turn = self._queue.pop(0)
            if not turn.done():
                turn.set_result(None)
                return

    async def _watched(  # type: ignore[override]
        self,
        connection: SimulatedConnection,
        method: Callable[..., Coroutine[Any, Any, Any]],
        statement: str,
        arguments: tuple[object, ...],
    ) -> Any:
        if method is real._FETCH:
            return await connection.fetch(statement, *arguments)
        if method is real._FETCHROW:
            return await connection.fetchrow(statement, *arguments)
        return await connection.fetchval(statement, *arguments)
