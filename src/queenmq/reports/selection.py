"""Which messages of a queue a group gets: what its filter lets through, and only the newest if it conflates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from msgspec import Struct

from queenmq.core.explanation import Verdict
from queenmq.reports.reading import Query, Reader

_EXAMINED: Final = 50


class Fitting(Struct, frozen=True):
    """Of the next unread messages of a partition, how many a filter lets through."""

    partition_id: UUID
    examined: int
    fitting: int


class SelectionRead(Struct, frozen=True):
    """`filtered` and `conflated` count what the group was not given: by filters, and because there was newer."""

    filter: str | None
    conflates: bool
    filtered: int
    conflated: int

    def judge(self, verdict: Verdict, unread: int, found: Fitting | None) -> Verdict:
        """The verdict on a partition, which says that something can be popped from it."""
        if verdict.reason != "deliverable":
            return verdict
        told = []
        if self.filter is not None and found is not None and found.examined:
            if not found.fitting:
                return self._nothing_fits(found.examined, unread)
            told.append(f"Of the next {found.examined} the filter {self.filter} lets {found.fitting} through.")
        if self.conflates:
            told.append("The group conflates: it gets only the newest of them.")
        return replace(verdict, sentence=" ".join((verdict.sentence, *told)))

    def _nothing_fits(self, examined: int, unread: int) -> Verdict:
        which = "the next unread message" if examined == 1 else f"any of the next {examined} unread messages"
        rest = "gets nothing" if unread <= examined else "goes on with those behind them"
        return Verdict(
            "filtered",
            f"The filter of the group, {self.filter}, does not let {which} through: the next pop passes over what does "
            f"not fit and {rest}.",
            "Push something that fits, or change the filter: `queen groups filter`, or POST …/filter.",
        )

    def at_end(self, verdict: Verdict) -> Verdict:
        """The verdict on a queue: of what was finished, the group may never have got some."""
        if verdict.reason != "end_reached":
            return verdict
        told = []
        if self.filtered:
            by = "a filter that it had" if self.filter is None else f"its filter, {self.filter},"
            told.append(f"{self.filtered} of them it was not given, because {by} did not let them through.")
        if self.conflated:
            told.append(f"{self.conflated} of them it was not given, because their partitions had newer ones.")
        return replace(verdict, sentence=" ".join((verdict.sentence, *told)))


EVERYTHING: Final = SelectionRead(None, False, 0, 0)
_SELECTION: Final = Query("explain_selection", SelectionRead)
_FITTING: Final = Query("explain_fitting", Fitting)


async def of_group(reader: Reader, queue_id: UUID, group: str) -> SelectionRead:
    return await reader.one(_SELECTION, queue_id, group)


async def fitting(
    reader: Reader, selection: SelectionRead, queue_id: UUID, group: str, partitions: Iterable[UUID]
) -> Mapping[UUID, Fitting]:
    """Of each of these partitions what the filter lets through, if there is one."""
    if selection.filter is None:
        return {}
    found = await reader.rows(_FITTING, queue_id, group, list(partitions), _EXAMINED)
    return {one.partition_id: one for one in found}
