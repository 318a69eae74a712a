"""What groups may get, and when: the rules of the checker that are about deliveries, leases and acknowledgements."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate

from queenmq.verify.facts import Copy, Delivery, Facts, Finding, Group, Lease, Partition, Tally
from queenmq.verify.history import FOREVER, Delivered

_PRECISION_S = 0.01  # of the time at which a message was stored


def everything_delivered(facts: Facts, tally: Tally) -> Iterator[Finding]:
    partitions: dict[str, list[str]] = defaultdict(list)
    for queue, partition in facts.sent:
        partitions[queue].append(partition)
    for (queue, group), op in facts.drained.items():
        got = {(one.message.partition, one.message.id) for one in facts.deliveries[queue, group]}
        leased = {(one.message.partition, one.message.id) for one in facts.deliveries[queue, group] if one.lease}
        floor = facts.seeks[queue, group].last_floor if (queue, group) in facts.seeks else -FOREVER
        unfinished = leased - {(said.partition, said.id) for said in facts.said[queue, group] if said.may_finish}
        for partition in partitions[queue]:
            for name, sent in facts.sent[queue, partition].items():
                if sent.known < FOREVER and sent.begun > floor:
                    tally(1)
                    if (partition, name) not in got:
                        yield f"{group} did not get {name} of {queue}/{partition}", (sent.known_by, op)
                    elif (partition, name) in unfinished:
                        yield f"{group} did not get {name} of {queue}/{partition} again", (sent.known_by, op)


def order_of_delivery(facts: Facts, tally: Tally) -> Iterator[Finding]:
    """Seeks to the beginning with an unknown outcome do not matter: whether they took place or not, what a group has
    finished now, it has finished since the last certain seek. What another seek may have passed over is not judged."""
    seen_in: dict[Partition, dict[tuple[int, str], None]] = defaultdict(dict)
    for _, queue, seen in facts.observations():
        seen_in[queue, seen.partition][seen.offset, seen.id] = None
    by_partition = {partition: sorted(seen_in.pop(partition)) for partition in list(seen_in)}
    # Of each message, when the newest of those up to it was pushed: where those begin that a seek has not passed over.
    newest = {
        (queue, partition): list(accumulate((_pushed(facts, queue, partition, name) for _, name in messages), max))
        for (queue, partition), messages in by_partition.items()
    }
    for group in facts.deliveries:
        leases = _by_epoch(facts, group)
        finished = _earliest_finishes(facts, group)
        for (epoch, partition), deliveries in leases.items():
            messages, pushed = by_partition[group[0], partition], newest[group[0], partition]
            index = bisect_right(pushed, _floor(facts, group, epoch, 0))
            for delivery, batch in deliveries:
                offsets = [message.offset for message in batch]
                tally(len(offsets))
                if sorted(set(offsets)) != offsets:
                    yield f"{group[1]} got {offsets} of {group[0]}/{partition} in one batch", (delivery.op,)
                floor = _floor(facts, group, epoch, delivery.ended)
                # Everything before the batch is finished, or was when an earlier batch came, or has been passed over.
                while index < len(messages) and messages[index][0] < min(offsets):
                    name = messages[index][1]
                    index += 1
                    if (
                        _pushed(facts, group[0], partition, name) > floor
                        and min(finished[epoch, partition, name], finished[None, partition, name]) > delivery.ended
                    ):
                        text = f"{group[1]} got {batch[0].id} of {group[0]}/{partition} before it finished {name}"
                        yield text, (delivery.op,)


def _floor(facts: Facts, group: Group, epoch: int, ended: float) -> float:
    return facts.seeks[group].floor(epoch, ended) if group in facts.seeks else -FOREVER


def _pushed(facts: Facts, queue: str, partition: str, name: str) -> float:
    """When it was sent; what nobody has sent is another rule's."""
    sent = facts.sent[queue, partition].get(name)
    return FOREVER if sent is None else sent.begun


def seeks(facts: Facts, tally: Tally) -> Iterator[Finding]:
    """What was certainly stored before a seek to the end, or before the message of a seek to a moment, does not come
    after it. A partition in which the group has read before is one that the seek has moved."""
    if all(one.request.to == "beginning" for sought in facts.seeks.values() for one in sought.all):
        return
    stored = _stored_by(facts)
    for group, sought in facts.seeks.items():
        read: dict[str, float] = {}
        for one in facts.deliveries[group]:
            read[one.message.partition] = min(read.get(one.message.partition, FOREVER), one.ended)
        for one in facts.deliveries[group]:
            epoch = sought.epoch(one.begun, one.ended)
            seek = None if epoch is None or sought.unknown_before(one.ended) else sought.alone(epoch)
            if seek is None or seek.request.to == "beginning" or read[one.message.partition] >= seek.begun:
                continue
            tally(1)
            moment = seek.begun
            if seek.request.to == "moment":
                moment = _pushed(facts, group[0], seek.request.partition, seek.request.id) - _PRECISION_S
            if stored.get((group[0], one.message.partition, one.message.id), FOREVER) < moment:
                text = f"{group[1]} got {one.message.id} of {group[0]}/{one.message.partition}"
                yield f"{text}, which a seek has passed over", (one.op,)


def _stored_by(facts: Facts) -> dict[Copy, float]:
    """When each message was certainly stored."""
    found = {
        (queue, partition, name): sent.known
        for (queue, partition), messages in facts.sent.items()
        for name, sent in messages.items()
        if sent.known_by in sent.stored
    }
    for (queue, _), deliveries in facts.deliveries.items():
        for one in deliveries:
            copy = (queue, one.message.partition, one.message.id)
            found[copy] = min(found.get(copy, FOREVER), one.ended)
    return found


def _by_epoch(facts: Facts, group: Group) -> dict[tuple[int, str], list[tuple[Delivery, list[Delivered]]]]:
    """The batches of a group, by epoch of its seeks and by partition, in the order in which they came."""
    batches: dict[tuple[int, int, str], tuple[Delivery, list[Delivered]]] = {}
    for one in facts.deliveries[group]:
        epoch = _epoch(facts, group, one.begun, one.ended)
        if epoch is not None and one.lease:
            batches.setdefault((one.op, epoch, one.message.partition), (one, []))[1].append(one.message)
    found: dict[tuple[int, str], list[tuple[Delivery, list[Delivered]]]] = defaultdict(list)
    for (_, epoch, partition), batch in sorted(batches.items(), key=lambda item: item[1][0].ended):
        found[epoch, partition].append(batch)
    return found


def _earliest_finishes(facts: Facts, group: Group) -> dict[tuple[int | None, str, str], float]:
    """When each message may have been finished at the earliest, by epoch and partition.

    A lease that was given out during a seek is of no epoch: what was finished under it may count in any.
    """
    earliest: dict[tuple[int | None, str, str], float] = defaultdict(lambda: FOREVER)
    for said in facts.said[group]:
        if said.may_finish and said.partition is not None:
            key = (_epoch(facts, group, said.lease.begun, said.lease.ended), said.partition, said.id)
            earliest[key] = min(earliest[key], said.begun)
    return earliest


def _epoch(facts: Facts, group: Group, begun: float, ended: float) -> int | None:
    return facts.seeks[group].epoch(begun, ended) if group in facts.seeks else 0


def _unknown_seeks(facts: Facts, group: Group, ended: float) -> int:
    return facts.seeks[group].unknown_before(ended) if group in facts.seeks else 0


def nothing_after_its_ack(facts: Facts, tally: Tally) -> Iterator[Finding]:
    """A message that is finished and comes again was brought back by a seek, each time by another one. Within an
    epoch these can only be seeks with an unknown outcome."""
    for group, acks in facts.said.items():
        finished: dict[tuple[int, str, str], list[tuple[float, int]]] = defaultdict(list)
        for said in sorted(acks, key=lambda said: said.ended):
            epoch = _epoch(facts, group, said.lease.begun, said.ended)
            if said.is_finish and said.partition is not None and epoch is not None:
                times = finished[epoch, said.partition, said.id]
                if not times or times[-1][0] < said.lease.begun:
                    times.append((said.ended, said.op))
        for one in facts.deliveries[group]:
            epoch = _epoch(facts, group, one.begun, one.ended)
            if epoch is None:
                continue
            tally(1)
            times = finished.get((epoch, one.message.partition, one.message.id), [])
            again = times[: bisect_left(times, (one.begun,))]
            if len(again) > _unknown_seeks(facts, group, one.ended):
                text = f"{group[1]} got {one.message.id} of {group[0]}/{one.message.partition} again"
                yield f"{text} after it had finished it", (*(op for _, op in again), one.op)


def one_lease_at_a_time(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for lease, op in facts.given_twice:
        yield f"{lease.group[1]} got the lease {lease.id} of {lease.group[0]} twice", (lease.op, op)
    for (group, partition), leases in _leases(facts).items():
        by_end = sorted(leases, key=lambda lease: lease.ended)
        index = 0
        longest: tuple[float, int] = (0, -1)
        for lease in sorted(leases, key=lambda lease: lease.begun):
            while index < len(by_end) and by_end[index].ended < lease.begun:
                if not facts.may_be_forgotten(by_end[index]):
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
            if said.partition is None:
                continue
            tally(1)
            ended, op = successors[said.lease.id, said.partition]
            # One that is repeated may be answered as the first one was.
            if said.taken is True and ended < said.begun and (said.lease.id, said.id) not in before:
                where = f"{group[0]}/{said.partition}"
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


def dead_letters(facts: Facts, tally: Tally) -> Iterator[Finding]:
    for group, (op, limit, dead) in facts.dead.items():
        # Failures before a seek need not count after it.
        certain: Counter[tuple[str, int | None]] = Counter()
        possible: Counter[str] = Counter()
        called: dict[str, int] = {}
        forced: set[str] = set()
        for said in facts.said[group]:
            if said.status == "failed":
                is_unknown = _unknown_seeks(facts, group, said.ended) > 0
                epoch = None if is_unknown else _epoch(facts, group, said.begun, said.ended)
                certain[said.id, epoch] += said.taken is True
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
