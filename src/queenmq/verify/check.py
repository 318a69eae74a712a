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
| `one-lease-at-a-time` | while a lease of a partition lives, the group gets no other one |
| `stale-leases-are-refused` | an acknowledgement under a lease that has a successor is not taken |
| `all-or-nothing` | of a transaction with an unknown outcome, everything took place or nothing |
| `dead-letters` | a message is a dead letter after `retryLimit` + 1 failures, and not before |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Final, TypeAlias

from queenmq.verify.facts import FOREVER, Copy, Delivery, Facts, Group, Lease
from queenmq.verify.history import Delivered, Event, operations
from queenmq.verify.verdict import Verdict, Violation

Finding: TypeAlias = tuple[str, tuple[int, ...]]
Tally: TypeAlias = Callable[[int], None]
Rule: TypeAlias = Callable[[Facts, Tally], Iterator[Finding]]
_MOST = 100


def check(history: Iterable[Event]) -> Verdict:
    """Judge a history by all rules; of each, the first hundred violations are kept. Raises BadHistory."""
    done = operations(history)
    facts = Facts(done)
    checked: Counter[str] = Counter()
    violations: list[Violation] = []
    for name, rule in RULES.items():
        found = rule(facts, partial(_count, checked, name))
        violations += (Violation(name, text, ops) for text, ops in islice(found, _MOST))
    outcomes = Counter(str(one.outcome) for one in done)
    return Verdict(len(done), dict(outcomes), {name: checked[name] for name in RULES}, violations)


def _count(checked: Counter[str], name: str, count: int) -> None:
    checked[name] += count


def one_message_an_offset(facts: Facts, tally: Tally) -> Iterator[Finding]:
    by_offset: dict[tuple[str, str, int], tuple[str, int]] = {}
    by_id: dict[Copy, tuple[int, int]] = {}
    for op, queue, seen in facts.observations():
        tally(1)
        name, other = by_offset.setdefault((queue, seen.partition, seen.offset), (seen.id, op))
        if name != seen.id:
            where = f"offset {seen.offset} of {queue}/{seen.partition}"
            yield f"{where} is {name} and {seen.id}", (other, op)
        offset, other = by_id.setdefault((queue, seen.partition, seen.id), (seen.offset, op))
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
            if not sent.is_possible:
                yield f"{seen.id} was refused and is in {queue}/{seen.partition}", (sent.first, op)


def stored_once(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for (queue, partition), messages in facts.sent.items():
        for name, sent in messages.items():
            tally(len(sent.stored) + len(sent.duplicates))
            if len(sent.stored) > 1:
                yield f"{name} was stored twice in {queue}/{partition}", tuple(sent.stored)
            if sent.first in sent.duplicates and len(sent.duplicates) + len(sent.stored) == 1:
                yield f"{name} was called a duplicate in {queue}/{partition}, and was pushed once", (sent.first,)
    for (queue, partition), (op, stored) in facts.stored.items():
        times = Counter(message.id for message in stored)
        for name in (name for name, count in times.items() if count > 1):
            yield f"{name} is stored {times[name]} times in {queue}/{partition}", (op,)


def order_of_pushes(facts: Facts, tally: Tally) -> Iterator[Finding]:
    offsets = _offsets(facts)
    for (queue, partition), messages in facts.sent.items():
        known = [
            (offsets[queue, partition, name], sent, name)
            for name, sent in messages.items()
            if (queue, partition, name) in offsets
        ]
        answered = sorted((one for one in known if one[1].known < FOREVER), key=lambda one: one[1].known)
        newest, index = (0, -1, ""), 0
        for offset, sent, name in sorted(known, key=lambda one: one[1].begun):
            while index < len(answered) and answered[index][1].known < sent.begun:
                newest = max(newest, (answered[index][0], answered[index][1].known_by, answered[index][2]))
                index += 1
            tally(1)
            if offset < newest[0]:
                text = f"{name} was pushed to {queue}/{partition} after the answer for {newest[2]}, and is before it"
                yield text, (newest[1], sent.first)
    for op, copies in facts.requests:
        own = [copy for copy in copies if facts.sent[copy[:2]][copy[2]].first == op and copy in offsets]
        for one, following in pairwise(own):
            if one[:2] == following[:2] and offsets[following] <= offsets[one] and following != one:
                yield f"{following[2]} stood behind {one[2]} in one push, and is before it", (op,)


def _offsets(facts: Facts) -> dict[Copy, int]:
    return {(queue, seen.partition, seen.id): seen.offset for _, queue, seen in facts.observations()}


def everything_delivered(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for (queue, group), op in facts.drained.items():
        got = {(one.message.partition, one.message.id) for one in facts.deliveries[queue, group]}
        leased = {(one.message.partition, one.message.id) for one in facts.deliveries[queue, group] if one.lease}
        unfinished = leased - {
            (said.lease.partitions.get(said.id, ""), said.id) for said in facts.said[queue, group] if said.may_finish
        }
        for (of, partition), messages in facts.sent.items():
            if of != queue:
                continue
            for name, sent in messages.items():
                if sent.known < FOREVER:
                    tally(1)
                    if (partition, name) not in got:
                        yield f"{group} did not get {name} of {queue}/{partition}", (sent.known_by, op)
                    elif (partition, name) in unfinished:
                        yield f"{group} did not get {name} of {queue}/{partition} again", (sent.known_by, op)


def order_of_delivery(facts: Facts, tally: Tally) -> Iterator[Finding]:
    known = sorted({(queue, seen.partition, seen.offset, seen.id) for _, queue, seen in facts.observations()})
    by_partition: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for queue, partition, offset, name in known:
        by_partition[queue, partition].append((offset, name))
    for group, leases in _by_epoch(facts).items():
        finished = _earliest_finishes(facts, group)
        for (epoch, partition), deliveries in leases.items():
            messages, index = by_partition[group[0], partition], 0
            for delivery, batch in deliveries:
                offsets = [message.offset for message in batch]
                tally(len(offsets))
                if sorted(set(offsets)) != offsets:
                    yield f"{group[1]} got {offsets} of {group[0]}/{partition} in one batch", (delivery.op,)
                # Everything before the batch is finished, or was when an earlier batch came.
                while index < len(messages) and messages[index][0] < min(offsets):
                    name = messages[index][1]
                    index += 1
                    if min(finished[epoch, partition, name], finished[None, partition, name]) > delivery.ended:
                        text = f"{group[1]} got {batch[0].id} of {group[0]}/{partition} before it finished {name}"
                        yield text, (delivery.op,)


def _by_epoch(facts: Facts) -> dict[Group, dict[tuple[int, str], list[tuple[Delivery, list[Delivered]]]]]:
    """The batches of each group, by epoch of its seeks and by partition, in the order in which they came."""
    found: dict[Group, dict[tuple[int, str], list[tuple[Delivery, list[Delivered]]]]] = {}
    for group, deliveries in facts.deliveries.items():
        batches: dict[tuple[int, int, str], tuple[Delivery, list[Delivered]]] = {}
        for one in deliveries:
            epoch = _epoch(facts, group, one.begun, one.ended)
            if epoch is not None and one.lease:
                batches.setdefault((one.op, epoch, one.message.partition), (one, []))[1].append(one.message)
        ordered = sorted(batches.items(), key=lambda item: item[1][0].ended)
        own = found.setdefault(group, defaultdict(list))
        for (_, epoch, partition), batch in ordered:
            own[epoch, partition].append(batch)
    return found


def _earliest_finishes(facts: Facts, group: Group) -> dict[tuple[int | None, str, str], float]:
    """When each message may have been finished at the earliest, by epoch and partition.

    A lease that was given out during a seek is of no epoch: what was finished under it may count in any.
    """
    earliest: dict[tuple[int | None, str, str], float] = defaultdict(lambda: FOREVER)
    for said in facts.said[group]:
        partition = said.lease.partitions.get(said.id)
        if said.may_finish and partition is not None:
            key = (_epoch(facts, group, said.lease.begun, said.lease.ended), partition, said.id)
            earliest[key] = min(earliest[key], said.begun)
    return earliest


def _epoch(facts: Facts, group: Group, begun: float, ended: float) -> int | None:
    return facts.seeks[group].epoch(begun, ended) if group in facts.seeks else 0


def nothing_after_its_ack(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for group, acks in facts.said.items():
        finished: dict[tuple[int, str, str], tuple[float, int]] = {}
        for said in acks:
            partition = said.lease.partitions.get(said.id)
            epoch = _epoch(facts, group, said.lease.begun, said.ended)
            if said.is_finish and partition is not None and epoch is not None:
                key = (epoch, partition, said.id)
                finished[key] = min(finished.get(key, (FOREVER, -1)), (said.ended, said.op))
        for one in facts.deliveries[group]:
            epoch = _epoch(facts, group, one.begun, one.ended)
            if epoch is None:
                continue
            tally(1)
            ended, op = finished.get((epoch, one.message.partition, one.message.id), (FOREVER, -1))
            if ended < one.begun:
                where = f"{group[0]}/{one.message.partition}"
                yield f"{group[1]} got {one.message.id} of {where} again after it had finished it", (op, one.op)


def one_lease_at_a_time(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for (group, partition), leases in _leases(facts).items():
        by_end = sorted(leases, key=lambda lease: lease.ended)
        index = 0
        longest: tuple[float, int] = (0, -1)
        for lease in sorted(leases, key=lambda lease: lease.begun):
            while index < len(by_end) and by_end[index].ended < lease.begun:
                longest = max(longest, (by_end[index].held_until(), by_end[index].op))
                index += 1
            tally(1)
            if lease.ended < longest[0]:
                text = f"{group[1]} got {group[0]}/{partition} while another lease of it was alive"
                yield text, (longest[1], lease.op)


def stale_leases_are_refused(facts: Facts, tally: Tally) -> Iterator[Finding]:
    successors: dict[tuple[str, str], tuple[float, int]] = {}
    for (_, of), leases in _leases(facts).items():
        earliest: tuple[float, int] = (FOREVER, -1)
        following = sorted(leases, key=lambda lease: lease.begun)
        for lease in sorted(leases, key=lambda lease: lease.ended, reverse=True):
            while following and following[-1].begun > lease.ended:
                earliest = min(earliest, (following[-1].ended, following[-1].op))
                following.pop()
            successors[lease.id, of] = earliest
    for group, acks in facts.said.items():
        before: set[tuple[str, str]] = set()
        for said in sorted(acks, key=lambda said: said.begun):
            partition = said.lease.partitions.get(said.id)
            if partition is None:
                continue
            tally(1)
            ended, op = successors[said.lease.id, partition]
            # One that is repeated may be answered as the first one was.
            if said.taken is True and ended < said.begun and (said.lease.id, said.id) not in before:
                where = f"{group[0]}/{partition}"
                yield (
                    f"{group[1]} finished {said.id} of {where} under a lease that was over",
                    (said.lease.op, op, said.op),
                )
            if said.taken is not False:
                before.add((said.lease.id, said.id))


def _leases(facts: Facts) -> dict[tuple[Group, str], list[Lease]]:
    found: dict[tuple[Group, str], list[Lease]] = defaultdict(list)
    for lease in facts.leases.values():
        for partition in dict.fromkeys(message.partition for message in lease.messages):
            found[lease.group, partition].append(lease)
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
        judged = [copy for copy in torn.copies if copy[:2] in there]
        stored = [copy for copy in judged if copy[2] in there[copy[:2]]]
        tally(1)
        if stored and len(stored) < len(judged):
            missing = next(copy for copy in judged if copy not in stored)
            yield f"of a transaction, {stored[0][2]} is stored and {missing[2]} is not", (torn.op,)
        shown = min((seen.get(copy, FOREVER) for copy in torn.copies), default=FOREVER)
        for lease, name in torn.acks:
            again = last[lease.group, name]
            if again.begun > shown and lease.group not in facts.seeks:
                yield f"of a transaction, the pushes are stored and {name} was delivered again", (torn.op, again.op)


def dead_letters(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for group, (op, limit, dead) in facts.dead.items():
        # Failures before a seek need not count after it.
        certain: Counter[tuple[str, int | None]] = Counter()
        possible: Counter[str] = Counter()
        called: dict[str, int] = {}
        forced: set[str] = set()
        for said in facts.said[group]:
            if said.status == "failed":
                certain[said.id, _epoch(facts, group, said.begun, said.ended)] += said.taken is True
                possible[said.id] += said.taken is not False
            elif said.status == "dlq" and said.taken is not False:
                forced.add(said.id)
            if said.dead:
                called[said.id] = said.op
        for name in dead - forced:
            tally(1)
            if possible[name] <= limit:
                text = f"{name} is a dead letter of {group[1]} in {group[0]} after {possible[name]} failures"
                yield f"{text}, and {limit + 1} are needed", (op,)
        for (name, epoch), failures in certain.items():
            tally(1)
            if failures > limit and epoch is not None and name not in dead:
                yield f"{name} failed {failures} times for {group[1]} in {group[0]} and is no dead letter", (op,)
        for name, by in called.items():
            if name not in dead:
                yield f"{name} was made a dead letter of {group[1]} in {group[0]} and is none", (by, op)


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
    )
}
