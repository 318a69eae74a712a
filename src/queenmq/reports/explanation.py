"""The verdict on a queue: why a group gets nothing from it, judged from what was read about it. No I/O.

`core.explanation` has the rules for one partition; here are those for several, and for what does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import HeldBack, Verdict, attempts_left, given_up, held_back, judge
from queenmq.core.names import QUEUE_MODE
from queenmq.reports.attempts import NOTHING, Head, HeadAttempts
from queenmq.reports.limits import LimitRead
from queenmq.reports.pauses import PauseRead
from queenmq.reports.places import SWITCHED_OFF, Place, options_of, under_pause
from queenmq.reports.queues import KnownQueue
from queenmq.reports.selection import EVERYTHING, Fitting, SelectionRead

_NO_PARTITION: Final = Verdict("end_reached", "The queue has no partition: nothing is stored in it.", "Push something.")
_NOTHING_HELD: Final = HeldBack()
_NOT_ALL: Final = "There are more partitions than were examined; ask about one of them to be sure."


@dataclass(frozen=True, slots=True)
class Question:
    """Why does this group get nothing from this queue, or from one partition of it? Without a group, the likeliest is
    meant. `default_mode` is where groups start that say nothing."""

    queue: str
    partition: str | None = None
    group: str | None = None
    default_mode: str = "all"


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server knows beside the database: which switches are off, and the pushes in its journal, by partition."""

    pops_paused: bool = False
    pushes_paused: bool = False
    journalled: Mapping[str, int] = field(default_factory=dict)


class HeldOperations(Struct, frozen=True):
    """The pushes to a partition that are in the operation queue. `error` is why the oldest failed."""

    partition: str
    operations: int
    oldest: datetime
    error: str | None
    is_blocked: bool


class PlaceRead(Place, frozen=True):
    """A partition of the queue. `more`: there are more than were examined."""

    partition_id: UUID
    partition: str
    more: bool


class QueueRead(Struct, frozen=True):
    """A queue that exists, and where the group stands in it. `is_started`: it has popped from the queue before."""

    queue: KnownQueue
    places: list[PlaceRead]
    dead_letters: int
    is_started: bool
    starts_new: bool
    pauses: list[PauseRead] = []
    limits: list[LimitRead] = []
    attempts: Mapping[Head, HeadAttempts] = {}
    selection: SelectionRead = EVERYTHING
    fitting: Mapping[UUID, Fitting] = {}

    def pause(self, partition: str | None, switched_off: bool) -> Verdict | None:
        """What keeps every pop from a partition, or from all of the queue if it is None."""
        if switched_off:
            return SWITCHED_OFF
        return next((one.verdict() for one in self.pauses if one.partition in (None, partition)), None)

    def limit(self, partition: str) -> Verdict | None:
        """The limit that allows nothing of a partition now."""
        of_it = (one for one in self.limits if one.partition in (None, partition))
        return next((found for one in of_it if (found := one.verdict())), None)


class Evidence(Struct, frozen=True):
    """Everything that was read to answer a question; of one moment. `found` says what does not exist instead."""

    group: str
    groups: list[str]
    held: list[HeldOperations]
    found: QueueRead | Literal["no queue", "no partition"]


class ExplainedPlace(Struct, frozen=True):
    place: PlaceRead
    verdict: Verdict
    attempts_left: int
    held: HeldBack
    attempts: HeadAttempts = NOTHING


class Explanation(Struct, frozen=True):
    """`is_deliverable`: a pop of the group that says nothing else gets something now."""

    group: str
    groups: list[str]
    verdict: Verdict
    is_deliverable: bool
    queued_pushes: int
    journalled_pushes: int
    dead_letters: int
    selection: SelectionRead
    places: list[ExplainedPlace]


def likeliest_group(groups: list[str]) -> str:
    """The group that is meant if none is named: queue mode, or the only one there is."""
    return groups[0] if len(groups) == 1 else QUEUE_MODE


def explained(question: Question, evidence: Evidence, server: ServerState) -> Explanation:
    held = _held(evidence.held, server)
    found = evidence.found
    places = _judged(found, evidence.group, held, server.pops_paused) if isinstance(found, QueueRead) else []
    if isinstance(found, QueueRead):
        verdict = found.pause(question.partition, server.pops_paused) or _on_queue(evidence, found, places, held)
    else:
        verdict = _first_held(held) or _unknown(question, found, len(evidence.groups))
    return Explanation(
        group=evidence.group,
        groups=evidence.groups,
        verdict=verdict,
        is_deliverable=_any_deliverable(places),
        queued_pushes=sum(one.operations for one in held.values()),
        journalled_pushes=sum(one.journalled for one in held.values()),
        dead_letters=found.dead_letters if isinstance(found, QueueRead) else 0,
        selection=found.selection if isinstance(found, QueueRead) else EVERYTHING,
        places=places,
    )


def _held(queued: list[HeldOperations], server: ServerState) -> dict[str, HeldBack]:
    """What was pushed and is not stored yet, by partition."""
    operations = {one.partition: one for one in queued}
    return {
        name: _held_back(operations.get(name), server.journalled.get(name, 0), server.pushes_paused)
        for name in (*operations, *server.journalled)
    }


def _held_back(queued: HeldOperations | None, journalled: int, pushes_paused: bool) -> HeldBack:
    if queued is None:
        return HeldBack(0, None, journalled, pushes_paused)
    return HeldBack(queued.operations, queued.oldest, journalled, pushes_paused, queued.error, queued.is_blocked)


def _first_held(held: dict[str, HeldBack]) -> Verdict | None:
    return next((held_back(one) for one in held.values()), None)


def _judged(found: QueueRead, group: str, held: dict[str, HeldBack], pops_paused: bool) -> list[ExplainedPlace]:
    options = options_of(found.queue)
    places = []
    for place in found.places:
        position, waits = place.position(found.queue.now), held.get(place.partition, _NOTHING_HELD)
        stopped = found.pause(place.partition, pops_paused) or found.limit(place.partition)
        verdict = found.selection.judge(
            judge(position, options, waits), place.unread, found.fitting.get(place.partition_id)
        )
        verdict = under_pause(verdict, stopped)
        failed = found.attempts.get((place.partition_id, group), NOTHING)
        places.append(ExplainedPlace(place, verdict, attempts_left(position, options), waits, failed))
    return places


def _any_deliverable(places: list[ExplainedPlace]) -> bool:
    return any(one.verdict.reason == "deliverable" for one in places)


def _on_queue(evidence: Evidence, found: QueueRead, places: list[ExplainedPlace], held: dict[str, HeldBack]) -> Verdict:
    verdict = found.selection.at_end(_overall(places, held, found.dead_letters))
    if not _any_deliverable(places) and any(one.place.more for one in places):
        verdict = replace(verdict, sentence=f"{verdict.sentence} {_NOT_ALL}")
    if found.is_started:
        return verdict
    return _never_started(evidence.group, evidence.groups, found.starts_new, verdict)


def _overall(places: list[ExplainedPlace], held: dict[str, HeldBack], letters: int) -> Verdict:
    """The verdict on the partition that comes next, but rather on one that has something unread."""
    if not places:
        return _first_held(held) or _NO_PARTITION
    if len(places) == 1 and places[0].verdict.reason != "end_reached":
        return places[0].verdict
    chosen = next((one for one in places if one.verdict.reason == "deliverable"), None)
    chosen = chosen or next((one for one in places if one.verdict.reason != "end_reached"), places[0])
    verdict, place = chosen.verdict, chosen.place
    if verdict.reason == "end_reached":
        return _first_held(held) or (given_up(letters) if letters else verdict)
    which = "is among those that come next" if place.more else "comes next"
    return replace(verdict, sentence=f"Partition {place.partition!r} {which}: {verdict.sentence}")


def _unknown(question: Question, missing: Literal["no queue", "no partition"], groups: int) -> Verdict:
    if missing == "no partition":
        return Verdict(
            "partition_unknown",
            f"Queue {question.queue!r} has no partition {question.partition!r}.",
            "Check the name, or push something to it: that makes the partition.",
        )
    waiting = f" {groups} groups wait for it." if groups > 1 else " One group waits for it." if groups else ""
    return Verdict(
        "queue_unknown",
        f"There is no queue {question.queue!r}.{waiting}",
        "Check the name (case counts), or push something: that makes the queue.",
    )


def _never_started(group: str, groups: list[str], starts_new: bool, overall: Verdict) -> Verdict:
    others = [name for name in groups if name != group]
    known = f" Groups that did: {', '.join(others)}." if others else ""
    who = "A reader without a group" if group == QUEUE_MODE else f"Group {group!r}"
    if overall.reason == "deliverable":
        first = f" Its first pop gets something. {overall.sentence}"
    elif overall.reason == "end_reached":
        first = " Its first pop gets nothing: " + (
            "groups start with new messages here unless they say otherwise (DEFAULT_SUBSCRIPTION_MODE)."
            if starts_new
            else "nothing is stored."
        )
    else:
        first = f" Its first pop gets nothing yet. {overall.sentence}"
    return Verdict(
        "group_never_started",
        f"{who} has never popped here, so it has no position in the queue.{known}{first}",
        "Let a consumer of this group pop once; it starts at the first stored message, or at new ones if it says so.",
    )
