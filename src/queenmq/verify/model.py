"""A queue in memory that keeps every promise, and the histories of clients that use it.

It is what `--self-test` corrupts: a checker that finds nothing in these histories, and everything in those that were
changed, can be believed. One partition after the other is read, so that leases, retries, seeks and transactions meet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from queenmq.verify.history import (
    Ack,
    Acked,
    AckStatus,
    Answer,
    Cancel,
    Cancelled,
    Completion,
    Dead,
    Delivered,
    Done,
    Drain,
    Event,
    History,
    Invocation,
    ListDead,
    Outcome,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Renew,
    Renewed,
    Request,
    Schedule,
    Seek,
    Stored,
    Transact,
)

QUEUE = "verify"
RETRY_LIMIT = 1
LEASE_S = 5.0


@dataclass(slots=True)
class _Reader:
    """A group in a partition."""

    finished: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    lease: str = ""
    expires: float = 0
    held: list[Delivered] = field(default_factory=list)


class ModelQueue:
    def __init__(self, seed: int, partitions: int = 3, groups: int = 2) -> None:
        self.history: History = []
        self._chance = random.Random(seed)  # noqa: S311
        self._now = 0.0
        self._op = 0
        self._ids = 0
        self._stored: dict[str, list[Delivered]] = {f"p{number}": [] for number in range(partitions)}
        self._groups = [f"g{number}" for number in range(groups)]
        self._readers = {(group, name): _Reader() for group in self._groups for name in self._stored}
        self._dead: dict[str, set[str]] = {group: set() for group in self._groups}
        self._late: list[Seek] = []  # without an answer, and not done yet
        self._stored_at: dict[str, float] = {}

    def run(self, steps: int) -> History:
        """So many steps of clients, then what every workload does at its end."""
        for _ in range(steps):
            step = self._chance.choices(
                (self._push, self._consume, self._push_again, self._transact, self._abandon, self._seek, self._timer),
                weights=(10, 12, 2, 2, 2, 0.2, 1),
            )[0]
            step()
            if self._late and self._chance.random() < 0.1:
                self._move(self._late.pop())
        for group in self._groups:
            self._drain(group)
        for partition, messages in self._stored.items():
            self._complete(self._invoke(Read(QUEUE, partition)), "ok", Stored(list(messages)))
        for group, dead in self._dead.items():
            self._complete(self._invoke(ListDead(QUEUE, group, RETRY_LIMIT)), "ok", Dead(sorted(dead)))
        return self.history

    # What clients do

    def _push(self) -> None:
        partition = self._partition()
        ids = [self._new_id() for _ in range(self._chance.randint(1, 3))]
        op = self._invoke(Push(QUEUE, partition, ids))
        match self._chance.choices(("stored", "accepted", "fail", "lost", "unsent"), weights=(80, 5, 5, 5, 5))[0]:
            case "fail":
                self._complete(op, "fail")
            case "unsent":
                self._complete(op, "info")
            case "lost":
                self._store(partition, ids)
                self._complete(op, "info")
            case word:
                self._store(partition, ids)
                self._complete(op, "ok", Pushed([word] * len(ids)))

    def _push_again(self) -> None:
        partition = self._partition()
        if self._stored[partition]:
            name = self._chance.choice(self._stored[partition]).id
            op = self._invoke(Push(QUEUE, partition, [name]))
            self._complete(op, "ok", Pushed(["duplicate"]))

    def _consume(self) -> None:
        popped = self._pop(self._chance.choice(self._groups))
        if popped is None:
            return
        lease, messages, reader, group = popped
        if self._chance.random() < 0.1:
            op = self._invoke(Renew(lease, LEASE_S))
            reader.expires = self._now + LEASE_S
            self._complete(op, "ok", Renewed(True))
        status: AckStatus = self._chance.choices(("completed", "failed", "retry", "dlq"), weights=(80, 12, 5, 3))[0]
        self._ack(lease, messages[: self._chance.randint(1, len(messages))], reader, group, status)

    def _abandon(self) -> None:
        """A consumer that dies: its lease ends, another one gets the messages, and its late ack is refused."""
        group = self._chance.choice(self._groups)
        popped = self._pop(group)
        if popped is None:
            return
        lease, messages, reader, _ = popped
        self._now = max(self._now, reader.expires) + 0.1
        if self._chance.random() < 0.5:
            again = self._pop(group, messages[0].partition)
            op = self._invoke(Ack(lease, [messages[0].id]))
            self._complete(op, "ok", Acked([False]))
            if again is not None:
                self._ack(again[0], again[1], again[2], group, "completed")

    def _transact(self) -> None:
        group = self._chance.choice(self._groups)
        popped = self._pop(group)
        if popped is None:
            return
        lease, messages, reader, _ = popped
        targets = self._chance.sample(list(self._stored), 2)
        pushes = [Push(QUEUE, target, [self._new_id()]) for target in targets]
        op = self._invoke(Transact(pushes, [Ack(lease, [message.id for message in messages])]))
        match self._chance.choices(("ok", "fail", "lost", "unsent"), weights=(6, 2, 1, 1))[0]:
            case "ok" | "lost" as word:
                for push in pushes:
                    self._store(push.partition, push.ids)
                self._finish(reader, messages)
                reader.lease = ""
                self._complete(op, "ok" if word == "ok" else "info", Done() if word == "ok" else None)
            case "fail":
                self._complete(op, "fail")
            case _:
                self._complete(op, "info")
        self._now = max(self._now, reader.expires) + 0.1

    def _seek(self) -> None:
        """If there is no answer, it is done at once, later or never."""
        group = self._chance.choice(self._groups)
        seek = Seek(QUEUE, group, self._chance.choice(("beginning", "beginning", "moment", "end")))
        if seek.to == "moment":
            delivered = [one for event in self.history[-200:] for one in _delivered(event)]
            if not delivered:
                return
            message = self._chance.choice(delivered)
            seek = Seek(QUEUE, group, "moment", message.partition, message.id)
        op = self._invoke(seek)
        match self._chance.choices(("ok", "fail", "lost", "late", "unsent"), weights=(12, 1, 1, 1, 1))[0]:
            case "ok":
                self._move(seek)
                self._complete(op, "ok", Done())
            case "fail":
                self._complete(op, "fail")
            case word:
                if word == "lost":
                    self._move(seek)
                elif word == "late":
                    self._late.append(seek)
                self._complete(op, "info")

    def _timer(self) -> None:
        """It is stored at its moment, unless it is cancelled before."""
        partition, name = self._partition(), self._new_id()
        seconds = self._chance.uniform(1, 5)
        outcome: Outcome = self._chance.choices(("ok", "fail", "info"), weights=(8, 1, 1))[0]
        due = self._now + seconds
        self._complete(self._invoke(Schedule(QUEUE, partition, name, seconds)), outcome, Done())
        is_there = outcome == "ok"
        if self._chance.random() < 0.3:
            self._complete(self._invoke(Cancel(QUEUE, name)), "ok", Cancelled(is_there))
            is_there = False
        self._now = max(self._now, due) + 0.1
        if is_there:
            self._store(partition, [name])

    def _drain(self, group: str) -> None:
        self._now += 2 * LEASE_S
        op = self._invoke(Drain(QUEUE, group))
        while popped := self._pop(group):
            lease, messages, reader, _ = popped
            self._ack(lease, messages, reader, group, "completed")
        self._complete(op, "ok", Done())

    # What the queue does

    def _move(self, seek: Seek) -> None:
        """What is under a lease is not, any more."""
        until = {"beginning": -1.0, "end": self._now}.get(seek.to, self._stored_at.get(seek.id, 0.0))
        for (of, partition), reader in self._readers.items():
            if of == seek.group:
                reader.finished = {one.offset for one in self._stored[partition] if self._stored_at[one.id] <= until}
                reader.failures.clear()
                reader.lease = ""

    def _store(self, partition: str, ids: Sequence[str]) -> None:
        stored = self._stored[partition]
        for name in ids:
            stored.append(Delivered(partition, len(stored) + 1, name))
            self._stored_at[name] = self._now

    def _pop(self, group: str, partition: str | None = None) -> tuple[str, list[Delivered], _Reader, str] | None:
        op = self._invoke(Pop(QUEUE, group, LEASE_S))
        for name in [partition] if partition else self._chance.sample(list(self._stored), len(self._stored)):
            reader = self._readers[group, name]
            unread = [message for message in self._stored[name] if message.offset not in reader.finished]
            if (reader.lease and reader.expires > self._now) or not unread:
                continue
            batch = unread[: self._chance.randint(1, 4)]
            reader.lease, reader.expires, reader.held = f"lease-{op}", self._now + LEASE_S, batch
            self._complete(op, "ok", Popped(reader.lease, batch))
            return reader.lease, batch, reader, group
        self._complete(op, "ok", Popped("", []))
        return None

    def _ack(self, lease: str, messages: Sequence[Delivered], reader: _Reader, group: str, status: AckStatus) -> None:
        op = self._invoke(Ack(lease, [message.id for message in messages], status))
        dead = []
        for message in messages:
            if status == "failed":
                reader.failures[message.offset] = reader.failures.get(message.offset, 0) + 1
            dead.append(status == "dlq" or reader.failures.get(message.offset, 0) > RETRY_LIMIT)
            if dead[-1]:
                self._dead[group].add(message.id)
            if dead[-1] or status == "completed":
                reader.finished.add(message.offset)
        if status != "completed" or all(held.offset in reader.finished for held in reader.held):
            reader.lease = ""
        self._complete(op, "ok", Acked([True] * len(messages), dead))
        if reader.lease:
            self._now = max(self._now, reader.expires) + 0.1

    def _finish(self, reader: _Reader, messages: Sequence[Delivered]) -> None:
        reader.finished |= {message.offset for message in messages}

    # How it is recorded

    def _invoke(self, request: Request) -> int:
        self._op += 1
        self._now += 0.01
        self.history.append(Invocation(self._op, "model", self._now, request))
        self._now += 0.01
        return self._op

    def _complete(self, op: int, outcome: Outcome, answer: Answer | None = None) -> None:
        self._now += 0.01
        self.history.append(Completion(op, self._now, outcome, answer))

    def _partition(self) -> str:
        return self._chance.choice(list(self._stored))

    def _new_id(self) -> str:
        self._ids += 1
        return f"m{self._ids}"


def _delivered(event: Event) -> list[Delivered]:
    answer = event.answer if isinstance(event, Completion) else None
    return answer.messages if isinstance(answer, Popped) else []
