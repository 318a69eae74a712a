"""The registry of schemas, and the check of pushes to the queues that ask for it.

The schemas are in the database. What this server remembers of those that are checked is read again when the database
notifies of a change, every minute, and before a message is refused. A push to a database without checked schemas costs
one read of `any`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from queenmq.clock import Clock
from queenmq.core.message import Message
from queenmq.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound, Overloaded
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement

if TYPE_CHECKING:
    from queenmq.core.json_schema import Validator

# The channel of NOTIFY on which the database announces that schemas were changed.
CHANGED: Final = "queen_schemas"
MOST_CHECKED_BYTES: Final = 16_000_000  # all schemas that are checked together
MOST_EVALUATIONS: Final = 200_000_000  # for all messages of a request
_EVALUATIONS_A_TURN: Final = 5_000_000  # then other requests have theirs
_MOST_PROOFS: Final = 8  # that wait
_MOST_VERSIONS: Final = 1000
_ATTEMPTS: Final = 5
_FRESH_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rules:
    """None leaves it as it is, or as it is at first: backward, and not checked."""

    compatibility: str | None = None
    check: bool | None = None


@dataclass(frozen=True, slots=True)
class SchemaSet:
    version: int
    compatibility: str
    check: bool
    is_new: bool


class _Key(NamedTuple):
    """Which text it is. After a schema is removed the versions begin with 1 again."""

    queue_id: UUID
    version: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class _Checked:
    key: _Key
    validator: Validator | None
    problem: str | None = None  # why there is no validator

    async def misfit(self, message: Message, comparison: Comparison) -> str | None:
        why = self.problem
        if self.validator is not None:
            why = await comparison.misfit(self.validator, message.payload)
        return (
            None if why is None else f"the message does not fit schema {self.key.version} of {message.queue!r}: {why}"
        )


class Comparison:
    """Of the payloads of one request with schemas: in turns with other requests, and as much as one may ask for."""

    def __init__(self) -> None:
        self._left = MOST_EVALUATIONS
        self._turn_ends = MOST_EVALUATIONS - _EVALUATIONS_A_TURN

    async def misfit(self, validator: Validator, payload: bytes) -> str | None:
        """Why a payload does not fit; None if it does."""
        self._left -= validator.cost(payload)
        if self._left < 0:
            return "comparing all payloads of the request with their schemas would take too long: send fewer at once"
        if self._left < self._turn_ends:
            self._turn_ends = self._left - _EVALUATIONS_A_TURN
            await asyncio.sleep(0)
        return validator.misfit(payload)


class Schemas:
    """`refused` counts the messages that did not fit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._checked: dict[str, _Checked] = {}
        self._is_stale = False
        self._reading = asyncio.Lock()
        self._proving = asyncio.Lock()
        self._proofs = 0
        self._read_at = float("-inf")
        self.any = False  # read for every push
        self.refused = 0

    def notice(self, _payload: str) -> None:
        """Schemas were changed."""
        self._is_stale = self.any = True

    async def refresh(self) -> None:
        """Read what is to be checked. Raises what the database raises; then everything stays as it is."""
        async with self._reading:
            await self._read()

    async def _read(self) -> None:
        known = {one.key: one for one in self._checked.values()}
        begun, self._is_stale = self._clock.monotonic(), False
        try:
            rows = await self._database.fetch(
                statement("checked_schemas"), *([key[n] for key in known] for n in range(3)), repeatable=True
            )
        except BaseException:
            self._is_stale = True
            raise
        found = {row["name"]: (_Key(row["queue_id"], row["version"], row["created_at"]), row["schema"]) for row in rows}
        checked: dict[str, _Checked] = {}
        for name, (key, text) in found.items():
            if key not in known:
                await asyncio.sleep(0)  # a large one takes a while
            checked[name] = known.get(key) or _compiled(key, text)
        self._checked = checked
        self._read_at = begun
        self.any = bool(self._checked) or self._is_stale

    async def misfits(self, messages: Sequence[Message]) -> dict[int, str]:
        """Why messages do not fit the schemas of their queues, by their place. While the database is away, what was
        known last counts."""
        if self._is_stale or self._reading.locked():
            await self._freshen(self._clock.monotonic())
        found = await self._misfits(messages)
        if found:
            await self._freshen(self._clock.monotonic() - _FRESH_S)
            found = await self._misfits(messages)
        self.refused += len(found)
        return found

    async def _freshen(self, since: float) -> None:
        """Read again, unless that was begun since then and nothing has changed; wait for who is at it."""
        async with self._reading:
            if not self._database.is_open or (not self._is_stale and self._read_at >= since):
                return
            with suppress(DatabaseUnavailable):
                await self._read()

    async def _misfits(self, messages: Sequence[Message]) -> dict[int, str]:
        found: dict[int, str] = {}
        comparison = Comparison()
        for index, message in enumerate(messages):
            checked = self._checked.get(message.queue)
            if checked is not None and (why := await checked.misfit(message, comparison)) is not None:
                found[index] = why
        return found

    async def incompatibility(self, old: Any, new: Any, rule: str) -> str | None:
        """Why a schema may not follow another; None if it may. One is found out at a time. Raises Overloaded."""
        from queenmq.broker import schema_proof

        if self._proofs >= _MOST_PROOFS:
            raise Overloaded("too many schemas are being compared: try again later")
        self._proofs += 1
        try:
            async with self._proving:
                return await schema_proof.incompatibility(old, new, rule)
        finally:
            self._proofs -= 1

    # The registry

    async def set(self, queue: str, schema: dict[str, Any] | None, rules: Rules, by: str | None) -> SchemaSet:
        """Make a schema the newest of a queue, unless it is that already; None changes only the rules.

        Raises NotFound, InvalidRequest for what is no schema, and Conflict if it may not follow the one before.
        """
        from queenmq.core import json_schema

        text = None if schema is None else schema_text(schema)
        for _ in range(_ATTEMPTS):
            row = await self._database.fetchrow(statement("schema_of"), queue)
            if row is None:
                raise NotFound(f"queue {queue!r} does not exist: configure it before you give it a schema")
            former = None if row["schema"] is None else json_schema.read_schema(row["schema"])
            if text is None and former is None:
                raise NotFound(f"queue {queue!r} has no schema")
            rule = rules.compatibility or row["compatibility"] or "backward"
            check = bool(row["is_checked"]) if rules.check is None else rules.check
            version = row["version"] or 0
            is_new = schema is not None and former != schema
            if schema is not None and former is not None and is_new:
                why = await self.incompatibility(former, schema, rule)
                if why is not None:
                    raise Conflict(f"the schema is not {rule} compatible with version {version}: {why}")
            if version + is_new > _MOST_VERSIONS:
                raise Conflict(f"queue {queue!r} has {_MOST_VERSIONS} versions of its schema; remove them first")
            size = len(text if is_new and text is not None else row["schema"])
            if check and row["checked_bytes"] + size > MOST_CHECKED_BYTES:
                raise Conflict(f"the schemas that are checked would have more than {MOST_CHECKED_BYTES} bytes together")
            wanted = (row["id"], version, version + is_new, rule, check, text if is_new else None, by)
            if await self._database.fetchrow(statement("set_schema"), *wanted) is not None:
                with after_commit():
                    await self.refresh()
                return SchemaSet(version + is_new, rule, check, is_new)
        raise Conflict(f"others change the schema of queue {queue!r} at the same time: try again")

    async def remove(self, queue: str) -> bool:
        """Whether there was one."""
        removed = await self._database.fetchrow(statement("remove_schema"), queue)
        with after_commit():
            await self.refresh()
        return removed is not None


def schema_text(schema: dict[str, Any]) -> str:
    """Of a schema that can be used. Raises InvalidRequest."""
    import msgspec

    from queenmq.core import json_schema

    text = msgspec.json.encode(schema).decode()
    if len(text) > json_schema.MOST_BYTES:
        raise InvalidRequest(f"schema has {len(text)} bytes, at most {json_schema.MOST_BYTES} are allowed", "schema")
    try:
        json_schema.Validator(schema)
    except json_schema.BadSchema as error:
        raise InvalidRequest(f"schema: {error}", "schema") from None
    return text


def _compiled(key: _Key, text: str) -> _Checked:
    from queenmq.core import json_schema

    try:
        return _Checked(key, json_schema.Validator(json_schema.read_schema(text)))
    except json_schema.BadSchema as error:
        return _Checked(key, None, f"this server cannot use the schema ({error})")
