"""Streaming reads: progress is a position for each partition, in Spark's checkpoint.

New partitions join by themselves, from their first message. What the checkpoint knows is held against what is there:
partitions that were dropped unread, and a database that is older than the checkpoint, are loss and not silence. Those
that the option `partitions` leaves out keep their place. `maxOffsetsPerTrigger` bounds a micro-batch;
Trigger.AvailableNow reads up to what is there at its start. Consumer groups are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from queenmq.pipeline.batch import SliceOfWork, tasks
from queenmq.pipeline.connection import connect, database_error, is_writable, rows
from queenmq.pipeline.continuity import compare, newest_read
from queenmq.pipeline.errors import DatabaseAway, DataLost
from queenmq.pipeline.generation import is_draining
from queenmq.pipeline.heads import Heads, chosen, find_queue, heads, partitions, positions, ranges, report_loss, unread
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.patience import PATIENCE_S, patiently
from queenmq.pipeline.planning import admit, slices
from queenmq.pipeline.progress import Progress
from queenmq.pipeline.reading import read_slice

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self._options = options
        self._names = names
        self._connection: Any = None
        self._until: Progress | None = None  # the end of Trigger.AvailableNow
        self._latest: Progress | None = None
        self._verified = False  # since this connection was made, that it leads to the database that was read
        self._reads_writer = False  # the connection led to a database that could be written to
        self._reached = False  # so that the URL is right, and an outage will end

    def initialOffset(self) -> dict[str, Any]:
        return self._ask(self._initial).document()

    def getDefaultReadLimit(self) -> Any:
        most = self._options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        if is_draining():
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._ask(lambda opened: self._next(opened, Progress.of(start), most)).document()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._latest.document() if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._ask(self._heads)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        before, after = Progress.of(start), Progress.of(end)
        if before.queue_id != after.queue_id:
            before = Progress(after.queue_id)
        moved = {n: at for n, at in after.positions.items() if at > before.positions.get(n, 0)}
        known = self._ask(lambda opened: partitions(opened, after.queue_id, list(moved)))
        if len(known) < len(moved):
            report_loss(
                [f"{len(moved) - len(known)} partitions of {self._options.queue!r}"], self._options.fail_on_data_loss
            )
            moved = {n: at for n, at in moved.items() if n in known}
        return [SliceOfWork(task) for task in slices(ranges(known, before.positions, moved), tasks(self._options))]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_slice(self._options, self._names, partition.task)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: progress is in the checkpoint."""

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def _ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Ask PostgreSQL on the connection that is kept between triggers; if it was lost meanwhile, on another one, as
        soon as there is one.

        A primary that has become a standby answers, too, and knows nothing new: then another connection is made.
        """
        return patiently(lambda: self._asked(question), PATIENCE_S if self._reached else 0.0)

    def _asked(self, question: Callable[[Any], Answer]) -> Answer:
        import psycopg

        try:
            if self._connection is not None and self._reads_writer and not is_writable(self._connection):
                self.stop()
            if self._connection is None:
                self._connection = connect(self._options.url)
                self._verified, self._reads_writer = False, is_writable(self._connection)
            self._reached = True
            return question(self._connection)
        except psycopg.Error as error:
            told = database_error(error)
            if isinstance(told, DatabaseAway):
                self.stop()
            raise told from error

    def _initial(self, opened: Any) -> Progress:
        queue_id = find_queue(opened, self._options)
        current = heads(opened, queue_id)
        ones = chosen(partitions(opened, queue_id), self._options)
        found = positions(
            opened, current, ones, self._options.start, starting=True, fail=self._options.fail_on_data_loss
        )
        [(dropped,)] = rows(opened, "pipeline_newest_drop", queue_id)
        return Progress(queue_id, {n: at for n, at in found.items() if at > 0}, dropped)

    def _heads(self, opened: Any) -> Progress:
        current = heads(opened, find_queue(opened, self._options))
        kept = self._kept(opened, current)
        return Progress(current.queue_id, {n: at for n, at in current.last.items() if at > 0 and n in kept})

    def _kept(self, opened: Any, current: Heads) -> Container[int]:
        """The partitions that the options choose."""
        if self._options.partitions is None:
            return current.last
        return chosen(partitions(opened, current.queue_id), self._options)

    def _next(self, opened: Any, start: Progress, most: int | None) -> Progress:
        current = heads(opened, find_queue(opened, self._options))
        kept = self._kept(opened, current)
        start = self._same_queue(opened, start, current)
        checked = compare(opened, self._options, current, start, names=not self._verified)
        self._verified = True
        begin = dict(checked.positions)
        end = current.last if self._until is None else self._until.positions
        gone = {
            n: (begin.get(n, 0) + 1, current.first[n] - 1)
            for n in end
            if n in current.last and n in kept and begin.get(n, 0) < current.first[n] - 1
        }
        lost = unread(opened, current.queue_id, gone)
        report_loss(
            [f"{count} of partition {name!r}" for name, count in lost.values()], self._options.fail_on_data_loss
        )
        begin.update({n: last for n, (_, last) in gone.items()})
        backlog = {
            n: last - begin.get(n, 0)
            for n, last in end.items()
            if n in current.last and n in kept and last > begin.get(n, 0)
        }
        self._latest = Progress(current.queue_id, {n: at for n, at in current.last.items() if at > 0 and n in kept})
        if not backlog:
            return checked
        admitted = admit(backlog, most) if most is not None else backlog
        moved = {n: begin.get(n, 0) + count for n, count in admitted.items()}
        positions = {n: at for n, at in (begin | moved).items() if at > 0}
        return Progress(current.queue_id, positions, checked.dropped, newest_read(opened, checked, moved))

    def _same_queue(self, opened: Any, start: Progress, current: Heads) -> Progress:
        if start.queue_id == current.queue_id:
            return start
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"queue {self._options.queue!r} was deleted and created again; "
                "failOnDataLoss=false reads the new one from its start"
            )
        log.warning("queue %r was deleted and created again: reading the new one from its start", self._options.queue)
        [(dropped,)] = rows(opened, "pipeline_newest_drop", current.queue_id)
        return Progress(current.queue_id, {}, dropped)
