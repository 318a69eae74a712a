"""Changes a history, for tests of the checker: answers are replaced, operations inserted, messages dropped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from queenmq.verify.history import (
    Completion,
    Delivered,
    Event,
    Fault,
    Invocation,
    Popped,
    Read,
    Request,
    Seek,
    Stored,
)


class NotHere(Exception):
    """The history has nothing that could be broken in this way."""


class Both(NamedTuple):
    """The two events of an operation."""

    begun: Invocation
    ended: Completion


class Tampering:
    """A history that is being changed."""

    def __init__(self, history: Sequence[Event], chance: random.Random) -> None:
        begun = {event.op: event for event in history if isinstance(event, Invocation)}
        self.events = list(history)
        self.chance = chance
        self.all = [Both(begun[event.op], event) for event in history if isinstance(event, Completion)]
        self.last = max(event.op for event in history if not isinstance(event, Fault))

    def some(self, request: type[Request], is_fit: Callable[[Any, Any], bool] = lambda request, answer: True) -> Both:
        """One of the operations that were answered with `ok`, by request and answer."""
        fit = [
            one
            for one in self.all
            if isinstance(one.begun.request, request)
            and one.ended.outcome == "ok"
            and is_fit(one.begun.request, one.ended.answer)
        ]
        if not fit:
            raise NotHere
        return self.chance.choice(fit)

    def requires_known_seeks(self) -> None:
        """Raises NotHere if a seek with an unknown outcome might explain what is wrong."""
        if any(isinstance(one.begun.request, Seek) and one.ended.outcome == "info" for one in self.all):
            raise NotHere

    def answer(self, one: Both, answer: Any) -> None:
        self.events[self.events.index(one.ended)] = replace(one.ended, answer=answer)

    def outcome(self, one: Both, outcome: Any) -> None:
        self.events[self.events.index(one.ended)] = replace(one.ended, outcome=outcome, answer=None)

    def insert(self, after: Event, request: Request, answer: Any, seconds: float = 0.001) -> None:
        """An operation of its own, right after an event."""
        self.last += 1
        at = after.at + seconds
        place = self.events.index(after) + 1
        self.events[place:place] = [
            Invocation(self.last, "intruder", at, request),
            Completion(self.last, at + seconds, "ok", answer),
        ]

    def reads(self, change: Callable[[list[Delivered]], list[Delivered]]) -> None:
        """Change what is stored in a partition that has a few messages."""
        one = self.some(Read, lambda request, answer: len(answer.messages) > 3)
        answer: Any = one.ended.answer
        self.answer(one, Stored(change(answer.messages)))

    def drop(self, name: str) -> None:
        """As if a message had never been delivered or read."""
        for one in self.all:
            match one.ended.answer:
                case Popped(lease=lease, messages=messages):
                    self.answer(one, Popped(lease, [message for message in messages if message.id != name]))
                case Stored(messages=messages):
                    self.answer(one, Stored([message for message in messages if message.id != name]))
