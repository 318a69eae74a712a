"""Why nothing is delivered: reads what decides it, in one snapshot, and has it judged."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from queenmq.core.names import parse_start
from queenmq.reports import attempts, limits, pauses, queues, selection
from queenmq.reports.explanation import (
    Evidence,
    Explanation,
    HeldOperations,
    PlaceRead,
    Question,
    QueueRead,
    ServerState,
    explained,
    likeliest_group,
)
from queenmq.reports.reading import Query, Reader, Reports

_MOST_PLACES: Final = 20
_MOST_GROUPS: Final = 20


class _Group(Struct, frozen=True):
    name: str


class _Letters(Struct, frozen=True):
    letters: int


class _Started(Struct, frozen=True):
    started: bool


_GROUPS: Final = Query("explain_groups", _Group)
_HELD: Final = Query("explain_held", HeldOperations)
_PLACES: Final = Query("explain_positions", PlaceRead)
_LETTERS: Final = Query("explain_dead_letters", _Letters)
_STARTED: Final = Query("explain_group", _Started)


async def explain(reports: Reports, question: Question, server: ServerState) -> Explanation:
    """Judge in one snapshot what keeps the messages back.

    `server.journalled` has to be read before: what is replayed meanwhile is seen twice, but never overlooked.
    """

    async def read(reader: Reader) -> Evidence:
        return await read_evidence(reader, question)

    return explained(question, await reports.snapshot(read), server)


async def read_evidence(reader: Reader, question: Question) -> Evidence:
    groups = [group.name for group in await reader.rows(_GROUPS, question.queue, _MOST_GROUPS)]
    group = question.group or likeliest_group(groups)
    queue = await queues.find(reader, question.queue, group)
    held = await reader.rows(_HELD, question.queue, question.partition, _MOST_PLACES)
    if queue is None:
        return Evidence(group, groups, held, "no queue")
    place = None
    if question.partition is not None:
        place = await queues.partition_id(reader, question.queue, question.partition)
        if place is None:
            return Evidence(group, groups, held, "no partition")
    starts_new = parse_start(group, None, None, question.default_mode).mode == "new"
    places = await reader.rows(_PLACES, queue.id, group, place, starts_new, _MOST_PLACES)
    wanted = ((one.partition_id, group, one.lease_id, one.next_offset) for one in places)
    selected = await selection.of_group(reader, queue.id, group)
    found = QueueRead(
        queue=queue,
        places=places,
        dead_letters=(await reader.one(_LETTERS, queue.id, group, place)).letters,
        is_started=(await reader.one(_STARTED, question.queue, group)).started,
        starts_new=starts_new,
        pauses=await pauses.of_group(reader, queue.id, group),
        limits=await limits.of_group(reader, queue.id, group, [one.partition for one in places]),
        attempts=await attempts.of_heads(reader, wanted),
        selection=selected,
        fitting=await selection.fitting(reader, selected, queue.id, group, (one.partition_id for one in places)),
    )
    return Evidence(group, groups, held, found)
