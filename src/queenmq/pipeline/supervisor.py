"""The supervisor: keeps declared pipelines running, each as a process of its own (`driver`).

It holds a lease in PostgreSQL for each pipeline that it runs, and renews them. Another supervisor takes those whose
leases have ended. Every start of a driver is a new generation, and only the newest one can publish (`generation`), so a
driver that its supervisor has lost sight of does no harm. Nothing here starts threads or waits for long: `tick` does
what can be done now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from queenmq.clock import SYSTEM, Clock
from queenmq.pipeline.driver import DRAINED, HOPELESS, SUPERSEDED
from queenmq.pipeline.errors import PipelineError
from queenmq.retry import Pauses

log = logging.getLogger(__name__)

LEASE_S: Final = 10.0
DRAIN_S: Final = 60.0
PAUSES: Final = Pauses(1.0, 60.0)
# A driver that has said nothing for so long, while PostgreSQL answers, hangs.
SILENT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Held:
    """A pipeline whose lease the supervisor has, as it is declared now."""

    name: str
    version: int
    declaration: dict[str, Any]
    state_number: int
    wanted: str
    asked: int
    silent_s: float


class Process(Protocol):
    """A driver that runs."""

    def poll(self) -> int | None:
        """Its exit status; negative if a signal has ended it, None while it runs."""
        ...

    def drain(self) -> None: ...

    def kill(self) -> None:
        """Everything of it, at once."""
        ...


class Store(Protocol):
    """What the supervisor asks of PostgreSQL. All raise PipelineError."""

    def hold(self, *, take: bool) -> list[Held]:
        """Renew the leases, and take free ones."""
        ...

    def begin(self, name: str, version: int) -> int | None:
        """The generation of the next driver; None if it cannot be started just now."""
        ...

    def say(self, name: str, state: str, failures: int, pause_s: float | None, error: str | None) -> None: ...

    def release(self, names: list[str]) -> None: ...


# Raises OSError if no process can be started.
Launch = Callable[[Held, int], Process]


@dataclass(kw_only=True)
class Unit:
    """One pipeline of this supervisor."""

    asked: int
    child: Process | None = None
    version: int = 0
    began: float = 0.0
    draining_since: float | None = None
    silent_since: float | None = None
    killed: bool = False
    failures: int = 0
    next_start: float = 0.0
    hopeless: bool = False
    state: str = "starting"


class Supervisor:
    def __init__(
        self, store: Store, launch: Launch, *, drain_s: float = DRAIN_S, clock: Clock = SYSTEM, pauses: Pauses = PAUSES
    ) -> None:
        self._store = store
        self._launch = launch
        self._drain_s = drain_s
        self._clock = clock
        self._pauses = pauses
        self.units: dict[str, Unit] = {}
        self.stopping = False
        self.killed = 0  # drivers that did not drain in time
        self.reached: float | None = None  # when PostgreSQL last answered
        self.ticked = clock.monotonic()

    @property
    def is_done(self) -> bool:
        return self.stopping and all(unit.child is None for unit in self.units.values())

    def tick(self) -> None:
        """Hold the leases, and bring every pipeline closer to what is wanted of it."""
        self.ticked = self._clock.monotonic()
        try:
            held = {one.name: one for one in self._store.hold(take=not self.stopping)}
        except PipelineError as error:
            # Drivers wait for PostgreSQL by themselves; nobody else can take their leases meanwhile.
            log.warning("the leases cannot be renewed just now: %s", error.message)
            self._without_database()
            return
        self.reached = self._clock.monotonic()
        for name in [name for name in self.units if name not in held]:
            self._lose(name)
        for one in held.values():
            try:
                self._step(one, self.units.setdefault(one.name, Unit(asked=one.asked)))
            except PipelineError as error:
                log.warning("%s: %s", one.name, error.message)

    def _without_database(self) -> None:
        now = self._clock.monotonic()
        for unit in self.units.values():
            if unit.child is None:
                continue
            if unit.child.poll() is not None:
                unit.child = None
                self._after_failure(unit, now)
            elif self.stopping:
                self._drain(unit, unit.child, now)

    def _lose(self, name: str) -> None:
        """Another supervisor has it: its driver can publish nothing any more."""
        unit = self.units.pop(name)
        if unit.child is not None:
            log.warning("%s: another supervisor has taken it over", name)
            unit.child.kill()

    def _step(self, one: Held, unit: Unit) -> None:
        now = self._clock.monotonic()
        if one.asked != unit.asked:
            unit.asked, unit.failures, unit.next_start, unit.hopeless = one.asked, 0, now, False
        wanted = one.wanted == "running" and not self.stopping
        if unit.child is not None:
            status = unit.child.poll()
            if status is not None:
                self._ended(one, unit, status, now)
            elif not wanted or one.version != unit.version:
                self._drain(unit, unit.child, now)
            else:
                self._watch(one, unit, unit.child, now)
        if unit.child is None:
            if not wanted:
                self._store.say(one.name, "stopped", unit.failures, None, None)
                self._store.release([one.name])
                del self.units[one.name]
            elif not unit.hopeless and now >= unit.next_start:
                self._start(one, unit, now)

    def _start(self, one: Held, unit: Unit, now: float) -> None:
        generation = self._store.begin(one.name, one.version)
        if generation is None:
            return
        log.info("%s: starting version %d", one.name, one.version)
        unit.version, unit.began = one.version, now
        unit.draining_since = unit.silent_since = None
        unit.killed = False
        try:
            unit.child = self._launch(one, generation)
        except OSError as error:
            # No memory, processes or files are left for it just now; the drivers that run go on.
            told = f"the driver cannot be started: {error.strerror or error}"
            log.warning("%s: %s", one.name, told)
            pause_s = self._after_failure(unit, now)
            self._store.say(one.name, "waiting", unit.failures, pause_s, told)
            return
        unit.state = "running"

    def _drain(self, unit: Unit, child: Process, now: float) -> None:
        if unit.draining_since is None:
            unit.draining_since, unit.state = now, "draining"
            child.drain()
        elif now - unit.draining_since > self._drain_s and not unit.killed:
            unit.killed = True
            self.killed += 1
            child.kill()

    def _watch(self, one: Held, unit: Unit, child: Process, now: float) -> None:
        if one.silent_s < SILENT_S:
            unit.silent_since = None
        elif unit.silent_since is None:
            unit.silent_since = now  # it may be that PostgreSQL was away
        elif now - unit.silent_since > SILENT_S:
            log.error("%s: the driver has said nothing for %d seconds and is ended", one.name, one.silent_s)
            unit.silent_since = None
            child.kill()

    def _ended(self, one: Held, unit: Unit, status: int, now: float) -> None:
        drained = unit.draining_since is not None
        unit.child = None
        if drained and (status == DRAINED or unit.killed):
            unit.failures, unit.next_start = 0, now
            return
        if status == SUPERSEDED:
            return  # the next answer says who has it
        error = f"the driver was ended by signal {-status}" if status < 0 else None
        log.warning("%s: %s", one.name, error or f"the driver ended with status {status}")
        if status == HOPELESS:
            unit.hopeless, unit.state = True, "failed"
            self._store.say(one.name, "failed", unit.failures + 1, None, error)
            return
        pause_s = self._after_failure(unit, now)
        self._store.say(one.name, "waiting", unit.failures, pause_s, error)

    def _after_failure(self, unit: Unit, now: float) -> float:
        """Returns the pause before the next start. Who has run for long enough begins anew with the shortest."""
        if now - unit.began > self._pauses.longest_s:
            unit.failures = 0
        unit.failures += 1
        unit.state = "waiting"
        pause_s = self._pauses.after(unit.failures)
        unit.next_start = now + pause_s
        return pause_s
