"""The batches that one consumer connection has in flight: claimed as they become readable, up to a bound, and finished.

Owns the credit of a connection (how many batches, how many bytes) and which leases its client holds. A batch that is
finished makes room for the next, which is claimed in the same call (`Finisher.take`); what that does not find is waited
for by one claim, as a long poll. When the connection ends, what its client holds is given back, unless it may still be
at work.

Finishing goes on when the connection has ended: what the server has read is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from queenmq.broker.finish import FINAL, NO_LEASE, Finished, Taken
from queenmq.broker.pop import Claim, Delivered
from queenmq.clock import Clock
from queenmq.core.acknowledgement import Finish
from queenmq.errors import QueenError

log = logging.getLogger(__name__)

_WAIT_MS: Final = 60_000
_FIRST_PAUSE_S: Final = 0.25
_LAST_PAUSE_S: Final = 5.0
_HELD_S: Final = 60.0  # then a lease is checked: it may have ended without a word
_LEAST_RENEWAL_S: Final = 1
_MOST_AT_ONCE: Final = 32  # claims, whose size nobody knows before
_FADING: Final = 16  # the size of the largest batch loses so much of itself, a 16th, with each that comes after it


class Verbs(Protocol):
    """Of the broker."""

    def pop(self, claim: Claim, wait_ms: int = 0) -> Awaitable[Delivered]: ...

    def take_now(self, finish: Finish, claim: Claim) -> Awaitable[Taken]:
        """Takes nothing unless the lease is over."""
        ...

    def finish(self, finish: Finish) -> Awaitable[Finished]: ...

    def renew(self, lease_id: str, seconds: int) -> Awaitable[datetime | None]: ...

    def give_back(self, *leases: tuple[str, str]) -> None: ...


@dataclass(slots=True)
class _Lease:
    """One that the client holds. `is_kept`: finishing it did not work, so the client says it again."""

    size: int
    since: float
    is_kept: bool = False


class InFlight:
    """`deliver` sends a batch to the client and returns its size; `room` waits until the client reads, and `has_room`
    says whether it would not have to. The size of a batch that is being claimed is taken for that of the largest, which
    fades as smaller ones come."""

    def __init__(
        self,
        verbs: Verbs,
        claim: Claim,
        deliver: Callable[[Delivered], int],
        room: Callable[[], Awaitable[None]],
        has_room: Callable[[], bool],
        *,
        most: int,
        most_bytes: int,
        clock: Clock,
    ) -> None:
        self._verbs = verbs
        self._claim = claim
        self._deliver = deliver
        self._room = room
        self._has_room = has_room
        self._most = most
        self._most_bytes = most_bytes
        self._clock = clock
        self._held: dict[str, _Lease] = {}
        self._bytes = 0  # of these
        self._largest = 0
        self._claiming = 0  # batches that are being claimed, or finished
        self._taking = 0  # of these, those that may bring bytes
        self._claims: asyncio.Future[list[bool | BaseException]] | None = None
        self._finishing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_draining = False
        self._is_closed = False
        self._gives_back = True
        self.delivered = 0

    @property
    def leases(self) -> int:
        """How many the client has, or is giving up."""
        return len(self._held) + len(self._finishing)

    async def claim(self) -> None:
        """Claim batches whenever there is room, until it is cancelled or `drain` was called."""
        width, pause_s = 1, _FIRST_PAUSE_S
        while True:
            await self._room()
            if self._is_draining:
                return
            free = min(width, self._most - len(self._held) - self._claiming, self._claimable())
            if free <= 0:
                await self._wait_for_change()
                continue
            # Several at once are one call; only one waits.
            self._claims = asyncio.gather(
                *(self._claim_one(0 if free > 1 else _WAIT_MS) for _ in range(free)), return_exceptions=True
            )
            self._claiming += free
            self._taking += free
            try:
                found = await self._claims
            except asyncio.CancelledError:
                if self._was_drained:
                    return
                raise
            finally:
                self._claims = None
                self._claiming -= free
                self._taking -= free
                self._changed.set()
            error = next((one for one in found if isinstance(one, BaseException)), None)
            if error is None:
                width = 2 * width if all(found) else 1
                pause_s = _FIRST_PAUSE_S
                continue
            if not isinstance(error, QueenError):
                raise error
            log.debug("a consumer of %s gets nothing for now: %s", self._claim.queue, error)
            await self._clock.sleep(pause_s)
            width, pause_s = 1, min(2 * pause_s, _LAST_PAUSE_S)

    def _claimable(self) -> int:
        """How many more claims may be under way, for what they may bring."""
        left = self._most_bytes - self._bytes - self._taking * self._largest
        return min(_MOST_AT_ONCE - self._taking, -(-left // max(self._largest, 1)))

    async def _wait_for_change(self) -> None:
        """Until there may be room. Leases that have ended meanwhile, and that the client does not finish, make room."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HELD_S):
                await self._changed.wait()
        now = self._clock.monotonic()
        old = [lease_id for lease_id, lease in self._held.items() if now - lease.since >= _HELD_S]
        # The client may have renewed them elsewhere: only the database knows. This never shortens a lease.
        renewals = (self._verbs.renew(lease_id, _LEAST_RENEWAL_S) for lease_id in old)
        for lease_id, expiry in zip(old, await asyncio.gather(*renewals, return_exceptions=True), strict=True):
            lease = self._held.get(lease_id)
            if lease is None:
                continue
            if expiry is None:
                del self._held[lease_id]
                self._bytes -= lease.size
                self._changed.set()
            else:
                lease.since = now

    async def _claim_one(self, wait_ms: int) -> bool:
        delivered = await self._verbs.pop(self._claim, wait_ms)
        # Nothing may be awaited here: a cancelled claim has either given its batch back or put it down.
        self._put(delivered)
        return bool(delivered)

    def finish(self, finish: Finish, done: Callable[[Finished], None]) -> None:
        """Finish a lease that the client holds, and take the next batch in the same call. `done` gets the result."""
        lease = self._held.pop(finish.lease_id, None)
        if lease is None:
            done(Finished(NO_LEASE, "lease_not_found", excepted=[(NO_LEASE, False)] * len(finish.excepted)))
            return
        self._bytes -= lease.size
        takes = not lease.is_kept and not self._is_draining and self._claimable() > 0 and self._has_room()
        self._claiming += 1  # in its place
        self._taking += takes
        task = asyncio.get_running_loop().create_task(self._finish(finish, lease.size, done, takes=takes))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _finish(self, finish: Finish, size: int, done: Callable[[Finished], None], *, takes: bool) -> None:
        taken = None
        try:
            if takes and not self._is_draining:
                taken = await self._verbs.take_now(finish, self._claim)
                finished = taken.finished
            else:
                finished = await self._verbs.finish(finish)
        except QueenError as error:
            finished = Finished(str(error), error.code, excepted=[(str(error), False)] * len(finish.excepted))
        finally:
            self._claiming -= 1
            self._taking -= takes
        if finished.code not in FINAL:
            self._hold(finish.lease_id, size, is_kept=True)
        if not self._is_closed:
            done(finished)
        if taken is not None and taken.delivered is not None:
            self._put(taken.delivered)
        self._changed.set()

    async def renew(self, lease_id: str, seconds: int) -> datetime | None:
        """The new expiry of a lease that the client holds, or None if it is not live. Raises QueenError."""
        return await self._verbs.renew(lease_id, seconds) if lease_id in self._held else None

    def resize(self, batch: int, partitions: int, most: int) -> None:
        """Claims from now on get so many messages, of so many partitions, and `most` of both; 0 changes nothing."""
        before = self._claim
        batch = min(batch or before.batch, most)
        partitions = 1 if before.partition is not None else min(partitions or before.partitions, most)
        self._claim = replace(before, batch=batch, partitions=partitions)
        self._largest = -(-self._largest * batch // before.batch)  # rounded up: it must not vanish

    def drain(self) -> None:
        """Claim nothing more."""
        self._is_draining = True
        if self._claims is not None:
            self._claims.cancel()
        self._changed.set()

    async def drained(self) -> None:
        """Wait until the client holds nothing any more."""
        while self._held or self._claiming:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _was_drained(self) -> bool:
        return self._is_draining and not self._is_closed

    def close(self, *, gives_back: bool = True) -> None:
        """The connection has ended. Leases that are being finished are not given back before that is known."""
        self._is_draining = self._is_closed = True
        self._gives_back = gives_back
        held, self._held = self._held, {}
        if held and gives_back:
            self._verbs.give_back(*((lease_id, self._claim.queue) for lease_id in held))

    def _put(self, delivered: Delivered) -> None:
        """Send it to the client; or give it back, if there is none any more."""
        if not delivered:
            return
        lease_id = delivered.claim.lease_id
        if self._is_closed:
            self._verbs.give_back((lease_id, self._claim.queue))
            return
        self._hold(lease_id, self._deliver(delivered))
        self.delivered += 1

    def _hold(self, lease_id: str, size: int, *, is_kept: bool = False) -> None:
        if self._is_closed:
            if not is_kept or self._gives_back:
                self._verbs.give_back((lease_id, self._claim.queue))
            return
        self._held[lease_id] = _Lease(size, self._clock.monotonic(), is_kept)
        self._bytes += size
        if not is_kept:
            self._largest = max(size, self._largest - self._largest // _FADING)
