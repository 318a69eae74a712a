"""A history: what was asked of servers and what they answered, in the order in which it happened.

Each operation is an invocation and, if it ended, a completion. Its outcome is one of three:

| outcome | meaning | what leads to it |
|---|---|---|
| `ok` | it took place; the answer says how | 200, 201, 202 |
| `fail` | it did not take place, and never will | 400 to 429, 503 with a code of Queen that says so |
| `info` | nobody knows | other 5xx, also of a proxy, a lost or late answer, a process that died |

An operation without a completion is as one with `info`. Times are seconds of one monotonic clock, so a history is
recorded by one process, or by processes of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from sys import intern
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

Outcome: TypeAlias = Literal["ok", "fail", "info"]
AckStatus: TypeAlias = Literal["completed", "failed", "retry", "dlq"]
FOREVER = float("inf")


class Push(Struct, frozen=True, gc=False, tag_field="f", tag="push", omit_defaults=True):
    queue: str
    partition: str
    ids: list[str]
    server: str = ""
    """Where it was sent to: what a server has in its journal keeps its order among the pushes to that server."""


class Pushed(Struct, frozen=True, gc=False, tag_field="f", tag="pushed"):
    """One word for each id.

    `accepted` is a 202: it is stored later, in order. So is `buffered`, and until then it is in the server's journal.
    """

    statuses: list[Literal["stored", "duplicate", "accepted", "buffered", "refused"]]


class Pop(Struct, frozen=True, gc=False, tag_field="f", tag="pop"):
    queue: str
    group: str
    lease_s: float = 0
    """How long the lease lives; 0 for a pop that finishes at delivery."""


class Delivered(Struct, frozen=True, gc=False, array_like=True):
    partition: str
    offset: int
    id: str


class Popped(Struct, frozen=True, gc=False, tag_field="f", tag="popped"):
    lease: str
    messages: list[Delivered]


class Ack(Struct, frozen=True, gc=False, tag_field="f", tag="ack"):
    lease: str
    ids: list[str]
    status: AckStatus = "completed"


class Acked(Struct, frozen=True, gc=False, tag_field="f", tag="acked"):
    """For each id, whether the server took it, and whether that made a dead letter of it."""

    taken: list[bool]
    dead: list[bool] = []


class Renew(Struct, frozen=True, gc=False, tag_field="f", tag="renew"):
    lease: str
    seconds: float


class Renewed(Struct, frozen=True, gc=False, tag_field="f", tag="renewed"):
    taken: bool


class Transact(Struct, frozen=True, gc=False, tag_field="f", tag="transact"):
    """Pushes, and acknowledgements as completed, that take place together or not at all."""

    pushes: list[Push] = []
    acks: list[Ack] = []


class Seek(Struct, frozen=True, gc=False, tag_field="f", tag="seek", omit_defaults=True):
    """To the beginning, behind everything, or behind the moment at which a message was stored, and so behind it."""

    queue: str
    group: str
    to: Literal["beginning", "moment", "end"] = "beginning"
    partition: str = ""
    """Of the message, whose id is next."""
    id: str = ""


class Schedule(Struct, frozen=True, gc=False, tag_field="f", tag="schedule"):
    """A timer: a message that is stored after so many seconds, unless it is cancelled. Its id is its key."""

    queue: str
    partition: str
    id: str
    seconds: float


class Cancel(Struct, frozen=True, gc=False, tag_field="f", tag="cancel"):
    queue: str
    id: str


class Cancelled(Struct, frozen=True, gc=False, tag_field="f", tag="cancelled"):
    """Whether there was such a timer; if not, it has been stored, or was cancelled before."""

    taken: bool


class Read(Struct, frozen=True, gc=False, tag_field="f", tag="read"):
    """Read a partition from its first message to its last, after all pushes have ended."""

    queue: str
    partition: str


class Stored(Struct, frozen=True, gc=False, tag_field="f", tag="stored"):
    messages: list[Delivered]


class Drain(Struct, frozen=True, gc=False, tag_field="f", tag="drain"):
    """Pop until nothing is left, after all pushes have ended. Its own pops and acks are operations as well."""

    queue: str
    group: str


class ListDead(Struct, frozen=True, gc=False, tag_field="f", tag="list-dead"):
    """List all dead letters of a group, after everything else has ended."""

    queue: str
    group: str
    retry_limit: int


class Dead(Struct, frozen=True, gc=False, tag_field="f", tag="dead"):
    ids: list[str]


class Done(Struct, frozen=True, gc=False, tag_field="f", tag="done"):
    """The answer of what has nothing more to say."""


Request: TypeAlias = Push | Pop | Ack | Renew | Transact | Seek | Schedule | Cancel | Read | Drain | ListDead
Answer: TypeAlias = Pushed | Popped | Acked | Renewed | Cancelled | Stored | Dead | Done


class Invocation(Struct, frozen=True, gc=False, tag_field="type", tag="invoke"):
    op: int
    process: str
    at: float
    request: Request
    wall: float = 0


class Completion(Struct, frozen=True, gc=False, tag_field="type", tag="complete"):
    op: int
    at: float
    outcome: Outcome
    answer: Answer | None = None
    error: str = ""
    wall: float = 0


class Fault(Struct, frozen=True, gc=False, tag_field="type", tag="fault"):
    """What was done to the servers meanwhile. It explains a history, and is what a crash of PostgreSQL is known by."""

    name: str
    at: float
    ended: float
    wall: float = 0


Event: TypeAlias = Invocation | Completion | Fault
History: TypeAlias = list[Event]

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Operation(Struct, frozen=True, gc=False):
    """An invocation with its completion."""

    op: int
    process: str
    request: Request
    begun: float
    ended: float = FOREVER
    """Infinite if it never ended."""
    outcome: Outcome = "info"
    answer: Answer | None = None


class BadHistory(Exception):
    """A history that cannot be judged: a line that is no event, or a completion of nothing."""


def operations(history: Iterable[Event]) -> list[Operation]:
    """In the order of their invocations. Raises BadHistory."""
    begun: dict[int, Invocation] = {}
    done: list[Operation] = []
    for event in history:
        if isinstance(event, Fault):
            continue
        if isinstance(event, Invocation):
            if event.op in begun:
                raise BadHistory(f"operation {event.op} is invoked twice")
            begun[event.op] = event
            continue
        one = begun.pop(event.op, None)
        if one is None:
            raise BadHistory(f"operation {event.op} is completed twice, or before it was invoked")
        if event.at < one.at:
            raise BadHistory(f"operation {event.op} ends before it begins")
        done.append(Operation(one.op, one.process, one.request, one.at, event.at, event.outcome, event.answer))
    done += (Operation(left.op, left.process, left.request, left.at) for left in begun.values())
    done.sort(key=lambda one: one.op)
    for before, after in pairwise(done):
        if before.op == after.op:
            raise BadHistory(f"operation {before.op} is invoked twice")
    done.sort(key=lambda one: one.begun)
    return done


def write_history(path: Path, history: Iterable[Event]) -> None:
    with path.open("wb") as file:
        for event in history:
            file.write(_ENCODER.encode(event) + b"\n")


def read_history(path: Path) -> Iterator[Event]:
    """One event a line. Raises BadHistory with the number of the first line that is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                event = _DECODER.decode(line)
            except msgspec.MsgspecError as error:
                raise BadHistory(f"{path}, line {number}: {error}") from error
            _share_names(event)
            yield event


def _share_names(event: Event) -> None:
    """A name is in many lines, and kept once: that is half of what a long history needs of memory."""
    match event:
        case Invocation(request=request):
            force_setattr(event, "process", intern(event.process))
            for field in ("queue", "partition", "group", "server", "lease", "id"):
                if name := getattr(request, field, ""):
                    force_setattr(request, field, intern(name))
            if isinstance(request, Push | Ack):
                request.ids[:] = map(intern, request.ids)
        case Completion(answer=Popped() | Stored() as answer):
            for message in answer.messages:
                force_setattr(message, "partition", intern(message.partition))
                force_setattr(message, "id", intern(message.id))
