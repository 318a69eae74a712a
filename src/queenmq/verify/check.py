"""The checker: which promises a history breaks. Pure, and linear in the length of the history but for sorting.

Each rule judges only what is certain. An operation with an unknown outcome may have taken place or not, at any time
after its invocation; two operations are ordered only if one ended before the other began.

| rule | what must hold |
|---|---|
| `one-message-an-offset` | an offset of a partition holds one message, and a message has one offset |
| `no-gaps` | the offsets of a partition follow each other without gaps |
| `nothing-lost` | what was answered with 201 or 202 is stored |
| `nothing-invented` | what is stored or delivered was pushed |
| `refused-means-nothing` | what was refused is neither stored nor delivered |
| `stored-once` | a transactionId is stored once in a partition, and only what was pushed before is a `duplicate` |
| `order-of-pushes` | a push that began after the answer of another is behind it; items of a request keep their order |
| `everything-delivered` | a group that was drained got what was answered with 201 or 202 until it could finish it |
| `order-of-delivery` | a group gets a message only after, or with, everything before it that it has not finished |
| `nothing-after-its-ack` | what a group has finished is not delivered to it again without a seek |
| `one-lease-at-a-time` | while a lease of a partition lives, the group gets no other one (unless PostgreSQL crashes) |
| `stale-leases-are-refused` | an acknowledgement under a lease that has a successor is not taken |
| `all-or-nothing` | of a transaction with an unknown outcome, everything took place or nothing |
| `dead-letters` | a message is a dead letter after `retryLimit` + 1 failures, and not before |
| `seeks` | what a seek to the end or to a moment has passed over does not come after it |
| `timers` | a timer is stored unless it was cancelled, and nobody gets it before its moment |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Final, TypeAlias

from queenmq.verify.delivery_rules import (
    dead_letters,
    everything_delivered,
    nothing_after_its_ack,
    one_lease_at_a_time,
    order_of_delivery,
    seeks,
    stale_leases_are_refused,
)
from queenmq.verify.facts import Copy, Facts, Finding, Partition, Tally
from queenmq.verify.history import FOREVER, Drain, Event, Fault, ListDead, Operation, Read, operations
from queenmq.verify.verdict import Verdict, Violation

Rule: TypeAlias = Callable[[Facts, Tally], Iterator[Finding]]
_MOST = 100


def check(history: Iterable[Event]) -> Verdict:
    """Judge a history by all rules; of each, the first hundred violations are kept. Raises BadHistory."""
    faults: list[Fault] = []
    done = operations(_without_faults(history, faults))
    count, outcomes, unjudged = len(done), Counter(str(one.outcome) for one in done), _unjudged(done)
    facts = Facts(done, faults)
    del done  # a long one takes much memory
    checked: Counter[str] = Counter()
    violations: list[Violation] = []
    for name, rule in RULES.items():
        found = rule(facts, partial(_count, checked, name))
        violations += (Violation(name, text, ops) for text, ops in islice(found, _MOST))
    return Verdict(count, dict(outcomes), {name: checked[name] for name in RULES}, violations, unjudged)


def _without_faults(history: Iterable[Event], faults: list[Fault]) -> Iterator[Event]:
    for event in history:
        if isinstance(event, Fault):
            faults.append(event)
        else:
            yield event


def _count(checked: Counter[str], name: str, count: int) -> None:
    checked[name] += count


def _unjudged(done: Sequence[Operation]) -> list[str]:
    """What was asked for at the end and never answered. What was not asked for is not missed."""
    succeeded: dict[str, bool] = {}
    for one in done:
        match one.request:
            case Drain(queue=queue, group=group):
                name = f"whether {group} got everything of {queue}: its drain ran out"
            case Read(queue=queue, partition=partition):
                name = f"what is stored in {queue}/{partition}: it could not be read"
            case ListDead(queue=queue, group=group):
                name = f"the dead letters of {group} in {queue}: they could not be listed"
            case _:
                continue
        succeeded[name] = succeeded.get(name, False) or one.outcome == "ok"
    return [name for name, is_done in succeeded.items() if not is_done]


def one_message_an_offset(facts: Facts, tally: Tally) -> Iterator[Finding]:
    by_offset: dict[Partition, dict[int, tuple[str, int]]] = defaultdict(dict)
    by_id: dict[Partition, dict[str, tuple[int, int]]] = defaultdict(dict)
    for op, queue, seen in facts.observations():
        tally(1)
        of = queue, seen.partition
        name, other = by_offset[of].setdefault(seen.offset, (seen.id, op))
        if name != seen.id:
            where = f"offset {seen.offset} of {queue}/{seen.partition}"
            yield f"{where} is {name} and {seen.id}", (other, op)
        offset, other = by_id[of].setdefault(seen.id, (seen.offset, op))
        if offset != seen.offset:
            yield f"{seen.id} is at the offsets {offset} and {seen.offset} of {queue}/{seen.partition}", (other, op)


def no_gaps(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for (queue, partition), (op, messages) in facts.stored.items():
        tally(len(messages))
        for one, following in pairwise(messages):
            if following.offset != one.offset + 1:
                yield f"{queue}/{partition} has the offset {following.offset} behind {one.offset}", (op,)


def nothing_lost(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for (queue, partition), (op, messages) in facts.stored.items():
        there = {message.id for message in messages}
        for name, sent in facts.sent[queue, partition].items():
            if sent.known < FOREVER:
                tally(1)
                if name not in there:
                    yield f"{name} was accepted for {queue}/{partition} and is not there", (sent.known_by, op)


def nothing_invented(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for op, queue, seen in facts.observations():
        tally(1)
        if seen.id not in facts.sent[queue, seen.partition]:
            yield f"nobody pushed {seen.id} to {queue}/{seen.partition}", (op,)


def refused_means_nothing(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for op, queue, seen in facts.observations():
        sent = facts.sent[queue, seen.partition].get(seen.id)
        if sent is not None:
            tally(1)
            if not sent.possible:
                yield f"{seen.id} was refused and is in {queue}/{seen.partition}", (sent.first, op)


def stored_once(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for (queue, partition), messages in facts.sent.items():
        for name, sent in messages.items():
            tally(len(sent.stored) + len(sent.duplicates))
            if len(sent.stored) > 1:
                yield f"{name} was stored twice in {queue}/{partition}", tuple(sent.stored)
            if sent.duplicates and sent.possible == 1:
                yield f"{name} was called a duplicate in {queue}/{partition}, and was pushed once", sent.duplicates
    for (queue, partition), (op, stored) in facts.stored.items():
        times = Counter(message.id for message in stored)
        for name in (name for name, count in times.items() if count > 1):
            yield f"{name} is stored {times[name]} times in {queue}/{partition}", (op,)


def order_of_pushes(facts: Facts, tally: Tally) -> Iterator[Finding]:
    offsets = _offsets(facts)
    for (queue, partition), messages in facts.sent.items():
        there = offsets[queue, partition]
        known = [(there[name], sent, name) for name, sent in messages.items() if name in there]
        answered = sorted((one for one in known if one[1].known < FOREVER), key=lambda one: one[1].known)
        # What a server has journalled is behind what came before it, and before what comes to the same server.
        newest_of: dict[str | None, tuple[int, int, str]] = defaultdict(lambda: (0, -1, ""))
        index = 0
        for offset, sent, name in sorted(known, key=lambda one: one[1].begun):
            while index < len(answered) and answered[index][1].known < sent.begun:
                before, earlier, called = answered[index]
                by = earlier.buffered_by
                newest_of[by] = max(newest_of[by], (before, earlier.known_by, called))
                index += 1
            tally(1)
            newest = max(newest_of[None], (0, -1, "") if sent.is_spread else newest_of[sent.server])
            if offset < newest[0]:
                text = f"{name} was pushed to {queue}/{partition} after the answer for {newest[2]}, and is before it"
                yield text, (newest[1], sent.first)
    for op, push in facts.requests:
        messages, there = facts.sent[push.queue, push.partition], offsets[push.queue, push.partition]
        # What others have pushed as well may be theirs, unless the answer to this one says that it was stored.
        own = [
            name for name in push.ids if name in there and (messages[name].possible == 1 or op in messages[name].stored)
        ]
        for one, following in pairwise(own):
            if there[following] <= there[one] and following != one:
                yield f"{following} stood behind {one} in one push, and is before it", (op,)


def _offsets(facts: Facts) -> dict[Partition, dict[str, int]]:
    found: dict[Partition, dict[str, int]] = defaultdict(dict)
    for _, queue, seen in facts.observations():
        found[queue, seen.partition][seen.id] = seen.offset
    return found


def all_or_nothing(facts: Facts, tally: Tally) -> Iterator[Finding]:
    there = {
        (queue, partition): {message.id for message in stored}
        for (queue, partition), (_, stored) in facts.stored.items()
    }
    seen: dict[Copy, float] = {}
    for (queue, _), deliveries in facts.deliveries.items():
        for one in deliveries:
            copy = (queue, one.message.partition, one.message.id)
            seen[copy] = min(seen.get(copy, FOREVER), one.ended)
    acked = {(lease.group, name) for torn in facts.torn for lease, name in torn.acks}
    last = {
        (group, one.message.id): one
        for group, deliveries in facts.deliveries.items()
        for one in sorted(deliveries, key=lambda one: one.begun)
        if (group, one.message.id) in acked
    }
    for torn in facts.torn:
        # What others have pushed as well says nothing about this one.
        own = [copy for copy in torn.copies if facts.sent[copy[:2]][copy[2]].possible == 1]
        judged = [copy for copy in own if copy[:2] in there]
        stored = [copy for copy in judged if copy[2] in there[copy[:2]]]
        tally(1)
        if stored and len(stored) < len(judged):
            missing = next(copy for copy in judged if copy not in stored)
            yield f"of a transaction, {stored[0][2]} is stored and {missing[2]} is not", (torn.op,)
        shown = min((seen.get(copy, FOREVER) for copy in own), default=FOREVER)
        for lease, name in torn.acks:
            again = last[lease.group, name]
            if again.begun > shown and lease.group not in facts.seeks:
                yield f"of a transaction, the pushes are stored and {name} was delivered again", (torn.op, again.op)


def timers(facts: Facts, tally: Tally) -> Iterator[Finding]:
    there = {key: {message.id for message in stored} for key, (_, stored) in facts.stored.items()}
    for (queue, partition, name), timer in facts.timers.items():
        if (queue, partition) not in there:
            continue
        tally(1)
        read = facts.stored[queue, partition][0]
        if name in there[queue, partition]:
            if timer.cancelled >= 0:
                yield f"{name} was cancelled and is in {queue}/{partition}", (timer.op, timer.cancelled, read)
        elif timer.is_certain and not timer.may_be_cancelled:
            yield f"{name} was scheduled for {queue}/{partition} and is not there", (timer.op, read)
    for (queue, group), deliveries in facts.deliveries.items():
        for one in deliveries:
            early = facts.timers.get((queue, one.message.partition, one.message.id))
            if early is not None and one.ended < early.due:
                where = f"{queue}/{one.message.partition}"
                yield f"{group} got {one.message.id} of {where} before its moment", (early.op, one.op)


RULES: Final[dict[str, Rule]] = {
    rule.__name__.replace("_", "-"): rule
    for rule in (
        one_message_an_offset,
        no_gaps,
        nothing_lost,
        nothing_invented,
        refused_means_nothing,
        stored_once,
        order_of_pushes,
        everything_delivered,
        order_of_delivery,
        nothing_after_its_ack,
        one_lease_at_a_time,
        stale_leases_are_refused,
        all_or_nothing,
        dead_letters,
        seeks,
        timers,
    )
}
