"""Ways in which a queue could break its promises, each done to a history that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from queenmq.verify.history import (
    Ack,
    Acked,
    Cancel,
    Dead,
    Delivered,
    Drain,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Schedule,
    Seek,
    Stored,
    Transact,
)
from queenmq.verify.tampering import Both, NotHere, Tampering

Corruption: TypeAlias = Callable[[Tampering], None]


def _first(answer: Popped) -> Delivered:
    return answer.messages[0]


def an_offset_is_given_twice(it: Tampering) -> None:
    it.reads(lambda stored: [*stored[:-1], replace(stored[-1], offset=stored[-2].offset)])


def a_message_moves(it: Tampering) -> None:
    one = it.some(Pop, lambda request, answer: answer.messages)
    answer: Any = one.ended.answer
    moved = [replace(message, offset=message.offset + 1000) for message in answer.messages]
    it.answer(one, Popped(answer.lease, moved))


def an_offset_is_left_out(it: Tampering) -> None:
    it.reads(lambda stored: [*stored[:-1], replace(stored[-1], offset=stored[-1].offset + 1)])


def a_stored_message_vanishes(it: Tampering) -> None:
    one = it.some(Push, lambda request, answer: answer.statuses[0] == "stored")
    it.drop(one.begun.request.ids[-1])  # type: ignore[union-attr]


def an_accepted_message_vanishes(it: Tampering) -> None:
    one = it.some(Push, lambda request, answer: answer.statuses[0] == "accepted")
    it.drop(one.begun.request.ids[-1])  # type: ignore[union-attr]


def a_message_comes_from_nowhere(it: Tampering) -> None:
    it.reads(lambda stored: [*stored, Delivered(stored[0].partition, stored[-1].offset + 1, "nobody's")])


def a_delivery_comes_from_nowhere(it: Tampering) -> None:
    one = it.some(Pop, lambda request, answer: answer.messages)
    answer: Any = one.ended.answer
    ghost = Delivered(answer.messages[-1].partition, 10**6, "nobody's")
    it.answer(one, Popped(answer.lease, [*answer.messages, ghost]))


def a_refused_push_is_stored(it: Tampering) -> None:
    it.outcome(it.some(Push, lambda request, answer: answer.statuses[0] == "stored"), "fail")


def a_refused_transaction_is_stored(it: Tampering) -> None:
    it.outcome(it.some(Transact), "fail")


def a_duplicate_is_stored_again(it: Tampering) -> None:
    one = it.some(Push, lambda request, answer: answer.statuses == ["duplicate"])
    it.answer(one, Pushed(["stored"]))
    if not any(
        isinstance(other.ended.answer, Pushed)
        and other.ended.answer.statuses[0] == "stored"
        and one.begun.request.ids[0] in other.begun.request.ids  # type: ignore[union-attr]
        for other in it.all
    ):
        raise NotHere


def a_new_message_is_called_a_duplicate(it: Tampering) -> None:
    pushed = [name for one in it.all if isinstance(one.begun.request, Push) for name in one.begun.request.ids]
    one = it.some(Push, lambda request, answer: answer.statuses == ["stored"] and pushed.count(request.ids[0]) == 1)
    it.answer(one, Pushed(["duplicate"]))


def a_message_is_stored_twice(it: Tampering) -> None:
    it.reads(lambda stored: [*stored, replace(stored[0], offset=stored[-1].offset + 1)])


def pushes_overtake_each_other(it: Tampering) -> None:
    """Two messages of different pushes change places, wherever they were seen."""
    read = it.some(Read, lambda request, answer: len(answer.messages) > 3)
    stored: Any = read.ended.answer
    known = {
        name
        for one in it.all
        if isinstance(one.begun.request, Push) and isinstance(one.ended.answer, Pushed)
        for name in one.begun.request.ids
    }
    sure = [message for message in stored.messages if message.id in known]
    if len(sure) < 2:
        raise NotHere
    swapped = {sure[0].id: sure[-1].offset, sure[-1].id: sure[0].offset}
    _move(it, swapped)


def items_of_a_push_change_places(it: Tampering) -> None:
    one = it.some(Push, lambda request, answer: len(request.ids) > 1 and answer.statuses[0] == "stored")
    names = one.begun.request.ids  # type: ignore[union-attr]
    offsets = {
        message.id: message.offset
        for other in it.all
        if isinstance(other.ended.answer, Stored)
        for message in other.ended.answer.messages
    }
    _move(it, {names[0]: offsets[names[1]], names[1]: offsets[names[0]]})


def _move(it: Tampering, offsets: dict[str, int]) -> None:
    for one in it.all:
        match one.ended.answer:
            case Popped(lease=lease, messages=messages):
                it.answer(one, Popped(lease, _moved(messages, offsets)))
            case Stored(messages=messages):
                moved = _moved(messages, offsets)
                it.answer(one, Stored(sorted(moved, key=lambda message: message.offset)))


def _moved(messages: Sequence[Delivered], offsets: dict[str, int]) -> list[Delivered]:
    return [replace(message, offset=offsets.get(message.id, message.offset)) for message in messages]


def a_group_never_gets_a_message(it: Tampering) -> None:
    drain = it.some(Drain)
    group = drain.begun.request.group  # type: ignore[union-attr]
    read = it.some(Read, lambda request, answer: len(answer.messages) > 3)
    known = {
        name
        for one in it.all
        if isinstance(one.begun.request, Push) and isinstance(one.ended.answer, Pushed)
        for name in one.begun.request.ids
    }
    stored: Any = read.ended.answer
    name = next((message.id for message in stored.messages if message.id in known), None)
    if name is None:
        raise NotHere
    for one in it.all:
        if isinstance(one.begun.request, Pop) and one.begun.request.group == group:
            answer: Any = one.ended.answer
            it.answer(one, Popped(answer.lease, [message for message in answer.messages if message.id != name]))


def an_unfinished_message_never_comes_again(it: Tampering) -> None:
    """The acknowledgements that finished a message are refused, and nobody gets it again."""
    one = it.some(Ack, lambda request, answer: request.status == "completed" and answer.taken[0])
    name = one.begun.request.ids[0]  # type: ignore[union-attr]
    group = _pop_of(it, one).begun.request.group  # type: ignore[union-attr]
    for other in it.all:
        request, answer = other.begun.request, other.ended.answer
        if isinstance(request, Transact) and any(name in ack.ids for ack in request.acks):
            raise NotHere
        if isinstance(request, Ack) and isinstance(answer, Acked) and name in request.ids:
            pop = [p for p in it.all if isinstance(p.ended.answer, Popped) and p.ended.answer.lease == request.lease]
            if pop and pop[0].begun.request.group == group:  # type: ignore[union-attr]
                taken = [was and of != name for of, was in zip(request.ids, answer.taken, strict=True)]
                it.answer(other, Acked(taken, answer.dead))


def a_batch_comes_in_the_wrong_order(it: Tampering) -> None:
    one = it.some(Pop, lambda request, answer: len(answer.messages) > 1)
    answer: Any = one.ended.answer
    it.answer(one, Popped(answer.lease, answer.messages[::-1]))


def a_message_overtakes_an_unfinished_one(it: Tampering) -> None:
    """A batch leaves out its first message, which nobody has finished."""
    first: dict[tuple[str, str], int] = {}
    for one in it.all:
        if isinstance(one.ended.answer, Popped) and one.ended.answer.messages:
            request: Any = one.begun.request
            first.setdefault((request.group, _first(one.ended.answer).partition), one.ended.op)
    one = it.some(
        Pop,
        lambda request, answer: len(answer.messages) > 1 and _first(answer).offset == 1,
    )
    answer: Any = one.ended.answer
    if one.ended.op not in first.values():
        raise NotHere
    it.answer(one, Popped(answer.lease, answer.messages[1:]))


def a_finished_message_comes_again(it: Tampering) -> None:
    it.requires_known_seeks()
    one = it.some(Ack, lambda request, answer: answer.taken[0] and request.status == "completed")
    pop = _pop_of(it, one)
    answer: Any = pop.ended.answer
    names = one.begun.request.ids  # type: ignore[union-attr]
    again = [message for message in answer.messages if message.id in names]
    it.insert(one.ended, pop.begun.request, Popped("another", again))


def a_partition_is_leased_twice(it: Tampering) -> None:
    it.requires_known_seeks()
    pop = it.some(Pop, lambda request, answer: answer.messages)
    answer: Any = pop.ended.answer
    it.insert(pop.ended, pop.begun.request, Popped("another", answer.messages))


def a_stale_ack_is_taken(it: Tampering) -> None:
    one = it.some(Ack, lambda request, answer: answer.taken == [False])
    pop = _pop_of(it, one)
    answer: Any = pop.ended.answer
    later = [
        other
        for other in it.all
        if isinstance(other.ended.answer, Popped)
        and other.begun.at > pop.ended.at
        and other.ended.at < one.begun.at
        and other.ended.answer.messages
        and _first(other.ended.answer).partition == _first(answer).partition
        and other.begun.request.group == pop.begun.request.group  # type: ignore[union-attr]
    ]
    if not later:
        raise NotHere
    it.answer(one, Acked([True]))


def _pop_of(it: Tampering, ack: Both) -> Both:
    return it.some(Pop, lambda request, answer: answer.lease == ack.begun.request.lease)  # type: ignore[union-attr]


def half_of_a_transaction_is_stored(it: Tampering) -> None:
    one = it.some(Transact)
    it.outcome(one, "info")
    it.drop(one.begun.request.pushes[0].ids[0])  # type: ignore[union-attr]


def a_transaction_forgets_its_acks(it: Tampering) -> None:
    one = it.some(Transact)
    request: Any = one.begun.request
    it.outcome(one, "info")
    pop = it.some(Pop, lambda asked, answer: answer.lease == request.acks[0].lease)
    names = {name for push in request.pushes for name in push.ids}
    shown = next(
        (
            other
            for other in it.all
            if isinstance(other.ended.answer, Popped)
            and names & {message.id for message in other.ended.answer.messages}
        ),
        None,
    )
    if shown is None or any(isinstance(one.begun.request, Seek) for one in it.all):
        raise NotHere
    it.insert(shown.ended, pop.begun.request, replace(pop.ended.answer, lease="another"))  # type: ignore[type-var]


def a_message_is_buried_too_early(it: Tampering) -> None:
    dead = next(one for one in it.all if isinstance(one.ended.answer, Dead))
    read = it.some(Read, lambda request, answer: answer.messages)
    stored: Any = read.ended.answer
    answer: Any = dead.ended.answer
    failed = {
        name
        for one in it.all
        if isinstance(one.begun.request, Ack) and one.begun.request.status in ("failed", "dlq")
        for name in one.begun.request.ids
    }
    healthy = [message.id for message in stored.messages if message.id not in failed]
    if not healthy:
        raise NotHere
    it.answer(dead, Dead([*answer.ids, healthy[0]]))


def a_dead_letter_vanishes(it: Tampering) -> None:
    filled = [one for one in it.all if isinstance(one.ended.answer, Dead) and one.ended.answer.ids]
    if not filled:
        raise NotHere
    answer: Any = filled[0].ended.answer
    it.answer(filled[0], Dead(answer.ids[1:]))


def what_a_seek_passed_over_comes(it: Tampering) -> None:
    it.requires_known_seeks()
    seek = it.some(Seek, lambda request, answer: request.to == "end")
    request: Any = seek.begun.request
    before = [
        one
        for one in it.all
        if isinstance(one.ended.answer, Popped)
        and one.ended.answer.messages
        and one.ended.at < seek.begun.at
        and one.begun.request.group == request.group  # type: ignore[union-attr]
    ]
    if not before:
        raise NotHere
    it.insert(seek.ended, before[-1].begun.request, replace(before[-1].ended.answer, lease="another"))  # type: ignore[type-var]


def a_timer_is_forgotten(it: Tampering) -> None:
    cancelled = {one.begun.request.id for one in it.all if isinstance(one.begun.request, Cancel)}
    one = it.some(Schedule, lambda request, answer: request.id not in cancelled)
    it.drop(one.begun.request.id)  # type: ignore[union-attr]


def a_cancelled_timer_is_stored(it: Tampering) -> None:
    one = it.some(Cancel, lambda request, answer: answer.taken)
    name = one.begun.request.id  # type: ignore[union-attr]
    made = it.some(Schedule, lambda request, answer: request.id == name)
    read = it.some(Read, lambda request, answer: request.partition == made.begun.request.partition)  # type: ignore[union-attr]
    stored: Any = read.ended.answer
    if not stored.messages:
        raise NotHere
    it.answer(read, Stored([*stored.messages, replace(stored.messages[-1], id=name)]))


def a_timer_comes_early(it: Tampering) -> None:
    one = it.some(Schedule)
    request: Any = one.begun.request
    it.insert(one.ended, Pop(request.queue, "g0", 1), Popped("early", [Delivered(request.partition, 1, request.id)]))


# Each with the rule that must name it.
CORRUPTIONS: Final[dict[Corruption, str]] = {
    an_offset_is_given_twice: "one-message-an-offset",
    a_message_moves: "one-message-an-offset",
    an_offset_is_left_out: "no-gaps",
    a_stored_message_vanishes: "nothing-lost",
    an_accepted_message_vanishes: "nothing-lost",
    a_message_comes_from_nowhere: "nothing-invented",
    a_delivery_comes_from_nowhere: "nothing-invented",
    a_refused_push_is_stored: "refused-means-nothing",
    a_refused_transaction_is_stored: "refused-means-nothing",
    a_duplicate_is_stored_again: "stored-once",
    a_new_message_is_called_a_duplicate: "stored-once",
    a_message_is_stored_twice: "stored-once",
    pushes_overtake_each_other: "order-of-pushes",
    items_of_a_push_change_places: "order-of-pushes",
    a_group_never_gets_a_message: "everything-delivered",
    an_unfinished_message_never_comes_again: "everything-delivered",
    a_batch_comes_in_the_wrong_order: "order-of-delivery",
    a_message_overtakes_an_unfinished_one: "order-of-delivery",
    a_finished_message_comes_again: "nothing-after-its-ack",
    a_partition_is_leased_twice: "one-lease-at-a-time",
    a_stale_ack_is_taken: "stale-leases-are-refused",
    half_of_a_transaction_is_stored: "all-or-nothing",
    a_transaction_forgets_its_acks: "all-or-nothing",
    a_message_is_buried_too_early: "dead-letters",
    a_dead_letter_vanishes: "dead-letters",
    what_a_seek_passed_over_comes: "seeks",
    a_timer_is_forgotten: "timers",
    a_cancelled_timer_is_stored: "timers",
    a_timer_comes_early: "timers",
}
