"""Which long polls wait where, indexed by queue and partition, so that a wake-up costs what it wakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Generic

from queenmq.core.group_backoff import BackoffSettings, GroupBackoff
from queenmq.engine.waiter import ANY_QUEUE, Family, Group, Place, Result


class WaiterRegistry(Generic[Result]):
    def __init__(
        self,
        backoff: BackoffSettings,
        *,
        family_began: Callable[[Family[Result]], None],
        came: Callable[[str], None],
        went: Callable[[str], None],
    ) -> None:
        """`came` and `went` are told of the first and of the last waiter of a queue."""
        self._backoff = backoff
        self._family_began = family_began
        self._came = came
        self._went = went
        self._groups: dict[Place, Group[Result]] = {}
        self._by_queue: dict[str, dict[str | None, dict[Place, Group[Result]]]] = {}
        self._families: dict[str, dict[Hashable, Family[Result]]] = {}
        self.total = 0

    def groups(self) -> Collection[Group[Result]]:
        return self._groups.values()

    def families(self, queue: str) -> Collection[Family[Result]]:
        return self._families.get(queue, {}).values()

    def concerned(self, queue: str, partitions: Collection[str] | None) -> list[dict[Place, Group[Result]]]:
        """The groups that wait for one of these partitions or for any of `queue` (with None: for any only), and those
        that look at several queues."""
        here = self._by_queue.get(queue, {})
        if partitions is None or len(partitions) < len(here):
            found = [here[partition] for partition in (None, *(partitions or ())) if partition in here]
        else:
            found = [groups for partition, groups in here.items() if partition is None or partition in partitions]
        return found + list(self._by_queue.get(ANY_QUEUE, {}).values())

    def enter(self, place: Place) -> Group[Result]:
        group = self._groups.get(place)
        if group is None:
            group = Group(place, GroupBackoff(self._backoff), self._join_family(place))
            self._groups[place] = group
            if place.queue not in self._by_queue:
                self._came(place.queue)
            self._by_queue.setdefault(place.queue, {}).setdefault(place.partition, {})[place] = group
            if group.family is not None and place.partition is not None:
                group.family.places[place.partition] = group
        group.members += 1
        self.total += 1
        return group

    def _join_family(self, place: Place) -> Family[Result] | None:
        if place.partition is None:
            return None
        families = self._families.setdefault(place.queue, {})
        family = families.get(place.group)
        if family is None:
            family = families[place.group] = Family(place.queue, place.group, GroupBackoff(self._backoff))
            self._family_began(family)
        return family

    def leave(self, group: Group[Result]) -> None:
        self.total -= 1
        group.members -= 1
        if group.members:
            return
        if group.timer is not None:
            group.timer.cancel()
        place = group.place
        del self._groups[place]
        places = self._by_queue[place.queue]
        del places[place.partition][place]
        if not places[place.partition]:
            del places[place.partition]
        if not places:
            del self._by_queue[place.queue]
            self._went(place.queue)
        if group.family is not None and place.partition is not None:
            del group.family.places[place.partition]
            if not group.family.places:
                self._end_family(group.family)

    def _end_family(self, family: Family[Result]) -> None:
        if family.timer is not None:
            family.timer.cancel()
        del self._families[family.queue][family.group]
        if not self._families[family.queue]:
            del self._families[family.queue]

    def parked(self) -> dict[str, int]:
        """Waiters by queue."""
        return {
            queue: sum(group.members for groups in places.values() for group in groups.values())
            for queue, places in self._by_queue.items()
            if queue
        }

    def average_interval_s(self) -> float:
        """How long places wait until they are looked at again by themselves."""
        intervals = [(group.family or group).backoff.interval_s for group in self._groups.values()]
        return sum(intervals) / len(intervals) if intervals else 0.0

    def statistics(self) -> dict[str, int]:
        groups = self._groups.values()
        return {
            "groups_tracked": len(groups),
            "groups_in_flight": sum(group.check is not None for group in groups),
            "groups_backed_off": sum((group.family or group).backoff.backed_off for group in groups),
            "waiters": self.total,
        }
