"""Reads and writes over HTTP: by offset with `POST /api/v1/fetch`, and by push.

A read is planned and cut as one from the database; a stream keeps a position for each partition by its id. What a
server does not tell (which messages were deleted by hand, which partitions were dropped) counts as loss. A push is
repeated with the same transactionIds, so that a row arrives once if it brings its own, and at least once otherwise.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from queenmq.ids import uuid7_text
from queenmq.pipeline.batch import SliceOfWork, tasks
from queenmq.pipeline.bounds import EARLIEST, LATEST, Bound
from queenmq.pipeline.columns import Columns
from queenmq.pipeline.errors import BadOption, DataLost, PipelineError
from queenmq.pipeline.heads import report_loss, some
from queenmq.pipeline.options import ReadOptions, WriteOptions
from queenmq.pipeline.planning import Range, Slice, admit, slices
from queenmq.pipeline.server import Access, Server
from queenmq.pipeline.staging import Stager

PAGE: Final = 1000  # partitions
OVERLAP: Final = 50  # of them, the next page has so many again
# Messages of a request, and of the partitions that share one.
AT_ONCE: Final = 1000
MOST_ENTRIES: Final = 100
MOST_PUSH_BYTES: Final = 4_000_000
OUT_OF_RANGE: Final = "OFFSET_OUT_OF_RANGE"
NO_PARTITION: Final = "UNKNOWN_TOPIC_OR_PARTITION"
NULL: Final = msgspec.Raw(b"null")


class _Record(msgspec.Struct, rename="camel"):
    offset: int
    id: str
    transaction_id: str
    payload: msgspec.Raw
    ts: datetime
    trace_id: str | None
    headers: msgspec.Raw = NULL


class _Entry(msgspec.Struct, rename="camel"):
    records: list[_Record]
    high_watermark: int
    log_start_offset: int
    error: str | None = None
    message: str | None = None


class _Answer(msgspec.Struct):
    entries: list[_Entry]


_answers = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Head:
    """A partition with its first and last stored offset."""

    id: str
    name: str
    first: int
    last: int


def listed(server: Server, queue: str) -> dict[str, Head]:
    """All partitions of the queue, by id. Raises NoSuchQueue.

    They come by name, a page at a time. Where some of those before are dropped meanwhile, all that follow move up: so a
    page has to begin with one that is known, else an earlier page is asked for.
    """
    found: dict[str, Head] = {}
    offset = overlap = 0
    while True:
        page = server.get("resources", "queues", queue, "partitions", limit=PAGE, offset=offset)
        ones, limit = page["partitions"], page["pagination"]["limit"]
        if offset and overlap and not (ones and ones[0]["id"] in found):
            offset = max(0, offset - limit)
            continue
        found |= {one["id"]: Head(one["id"], one["name"], one["firstOffset"], one["lastOffset"]) for one in ones}
        if len(ones) < limit:
            return found
        overlap = min(OVERLAP, limit // 2)
        offset += limit - overlap


def heads(server: Server, options: ReadOptions) -> dict[str, Head]:
    """The partitions that the options choose, by id. Raises NoSuchQueue, and BadOption for one that does not exist."""
    found = listed(server, options.queue)
    named = (options.partitions or frozenset()) | options.start.named.keys() | options.end.named.keys()
    if unknown := sorted(named - {one.name for one in found.values()}):
        raise BadOption(f"queue {options.queue!r} has no partition {some(unknown)}")
    wanted = options.partitions
    return {key: one for key, one in found.items() if wanted is None or one.name in wanted}


def positions(server: Server, options: ReadOptions, found: dict[str, Head], bound: Bound, *, starting: bool) -> Any:
    """For each partition the last offset before the bound."""
    made: dict[str, int] = {}
    lost = []
    for key, head in found.items():
        place = bound.named.get(head.name, bound.others)
        if place in (EARLIEST, LATEST):
            made[key] = head.first - 1 if place == EARLIEST else head.last
        elif isinstance(place, datetime):
            [entry] = fetch(server, [_entry(options.queue, head.name, since=place.isoformat(), limit=1)])
            made[key] = (entry.records[0].offset if entry.records else entry.high_watermark) - 1
        elif isinstance(place, int):
            if place > head.last + 1:
                raise BadOption(f"partition {head.name!r} has no offset {place}: the last one is {head.last}")
            if starting and max(1, place) < head.first:
                lost.append(f"{head.name} from {place} (stored from {head.first})")
            made[key] = max(head.first - 1, place - 1)
    report_loss(lost, options.fail_on_data_loss)
    return made


def ranges(found: dict[str, Head], start: dict[str, int], end: dict[str, int]) -> list[Range]:
    made = [
        Range(key, found[key].name, max(start.get(key, 0) + 1, found[key].first), last)
        for key, last in end.items()
        if key in found
    ]
    return sorted((part for part in made if part.offsets > 0), key=lambda part: part.partition_id)


def fetch(server: Server, entries: list[dict[str, object]]) -> list[_Entry]:
    found = _answers.decode(server.ask("POST", "fetch", msgspec.json.encode({"entries": entries}))).entries
    for asked, entry in zip(entries, found, strict=True):
        if entry.error == NO_PARTITION:
            raise DataLost(f"partition {asked['partition']!r} was deleted while its messages were to be read")
        if entry.error not in (None, OUT_OF_RANGE):
            raise PipelineError(f"partition {asked['partition']!r}: {entry.message or entry.error}")
    return found


def _entry(queue: str, partition: str, **more: object) -> dict[str, object]:
    return {"queue": queue, "partition": partition, **more}


def read_slice(access: Access, options: ReadOptions, names: list[str], task: Slice) -> Iterator[Any]:
    """The messages of a slice in order, as record batches. Raises DataLost if some are gone, unless the options say
    that this does not matter."""
    columns = Columns(options, names)
    partitions = columns.partitions(task.ranges)
    todo = [(index, part.first, part.last) for index, part in enumerate(task.ranges)]
    with closing(Server(access, reached=True)) as server:
        while todo:
            asked, room = [], AT_ONCE
            for index, first, last in todo[:MOST_ENTRIES]:
                asked.append((index, first, min(last, first + room - 1), last))
                room -= min(room, last - first + 1)
                if not room:
                    break
            wanted = [
                _entry(options.queue, task.ranges[index].partition, offset=first, limit=upto - first + 1)
                for index, first, upto, _ in asked
            ]
            left = []
            for place, ((index, first, upto, last), found) in enumerate(zip(asked, fetch(server, wanted), strict=True)):
                records = [one for one in found.records if one.offset <= upto]
                reached = records[-1].offset if records else min(upto, max(first, found.log_start_offset) - 1)
                if reached < first and (place == 0 or found.records or found.high_watermark <= first):
                    # Nothing is there any more. Without records, a later entry may only be cut off by its bytes.
                    reached = upto
                _check_whole(options, task.ranges[index].partition, records, first, reached)
                if records:
                    yield columns.make(_batch(records, index + 1), partitions)
                if reached < last:
                    left.append((index, reached + 1, last))
            todo = left + todo[len(asked) :]


def _check_whole(options: ReadOptions, partition: str, records: list[_Record], first: int, last: int) -> None:
    missing = last - first + 1 - len(records)
    if missing:
        report_loss([f"{missing} of partition {partition!r} from {first} to {last}"], options.fail_on_data_loss)


def _batch(records: list[_Record], index: int) -> Any:
    """As the database would have sent them."""
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(
        {
            "range_index": pa.array([index] * len(records), pa.int32()),
            "offset": pa.array([one.offset for one in records], pa.int64()),
            "created_at": pa.array([one.ts for one in records], pa.timestamp("us", "UTC")),
            "transaction_id": pa.array([one.transaction_id for one in records], pa.string()),
            "trace_id": pa.array([one.trace_id for one in records], pa.string()),
            "id": pa.array([one.id for one in records], pa.string()),
            "payload": pa.array([bytes(one.payload) for one in records], pa.binary()),
            "headers": pa.array([None if one.headers is NULL else bytes(one.headers) for one in records], pa.string()),
        }
    )


class BatchReader(DataSourceReader):
    def __init__(self, access: Access, options: ReadOptions, names: list[str]) -> None:
        self._access, self._options, self._names = access, options, names

    def partitions(self) -> Sequence[Any]:
        options = self._options
        with closing(Server(self._access)) as server:
            found = heads(server, options)
            start = positions(server, options, found, options.start, starting=True)
            end = positions(server, options, found, options.end, starting=False)
        return [SliceOfWork(task) for task in slices(ranges(found, start, end), tasks(options)) or [Slice()]]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_slice(self._access, self._options, self._names, partition.task)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, access: Access, options: ReadOptions, names: list[str]) -> None:
        self._access, self._options, self._names = access, options, names
        self._server = Server(access)
        self._until: dict[str, int] | None = None  # the end of Trigger.AvailableNow

    def initialOffset(self) -> dict[str, Any]:
        found = heads(self._server, self._options)
        return _document(positions(self._server, self._options, found, self._options.start, starting=True))

    def getDefaultReadLimit(self) -> Any:
        most = self._options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = {key: head.last for key, head in heads(self._server, self._options).items()}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        begin, found = _positions_of(start), heads(self._server, self._options)
        self._check(begin, found)
        end = self._until if self._until is not None else {key: head.last for key, head in found.items()}
        begin |= {key: head.first - 1 for key, head in found.items() if begin.get(key, 0) < head.first - 1}
        behind = {key: end[key] - begin.get(key, 0) for key in end if key in found and end[key] > begin.get(key, 0)}
        if isinstance(limit, ReadMaxRows):
            names = sorted(behind)
            shares = admit({n: behind[key] for n, key in enumerate(names)}, limit.max_rows)
            behind = {names[n]: count for n, count in shares.items()}
        return _document(begin | {key: begin.get(key, 0) + count for key, count in behind.items()})

    def _check(self, begin: dict[str, int], found: dict[str, Head]) -> None:
        """What the checkpoint knows, held against what is there."""
        lost = [
            f"{head.first - 1 - at} of partition {head.name!r}"
            for key, head in found.items()
            if (at := begin.get(key, 0)) < head.first - 1
        ]
        lost += [
            f"partition {found[key].name!r} beyond its end" for key in found if begin.get(key, 0) > found[key].last
        ]
        if self._options.partitions is None:
            lost += [f"the partition with the id {key}" for key in begin if key not in found]
        report_loss(lost, self._options.fail_on_data_loss)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        begin, until = _positions_of(start), _positions_of(end)
        moved = {key: last for key, last in until.items() if last > begin.get(key, 0)}
        # All that the batch is about: it may have been planned before the option partitions was changed.
        found = listed(self._server, self._options.queue)
        if not moved.keys() <= found.keys():
            found |= listed(self._server, self._options.queue)
        lost = [f"the partition with the id {key}" for key in moved if key not in found]
        lost += [
            f"{min(found[key].first - 1, last) - at} of partition {found[key].name!r}"
            for key, last in moved.items()
            if key in found and (at := begin.get(key, 0)) < found[key].first - 1
        ]
        report_loss(lost, self._options.fail_on_data_loss)
        made = ranges(found, begin, moved)
        return [SliceOfWork(task) for task in slices(made, tasks(self._options)) or [Slice()]]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_slice(self._access, self._options, self._names, partition.task)

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        self._server.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_server": Server(self._access)}  # a connection cannot go to a task


def _document(found: dict[str, int]) -> dict[str, Any]:
    return {"positions": b64encode(zlib.compress(msgspec.json.encode(dict(sorted(found.items()))), 1)).decode()}


def _positions_of(document: dict[str, Any]) -> dict[str, int]:
    try:
        return msgspec.json.decode(zlib.decompress(b64decode(document["positions"])), type=dict[str, int])
    except (KeyError, ValueError, zlib.error):
        raise PipelineError(
            "the checkpoint is of a stream that reads from PostgreSQL: a stream over HTTP needs one of its own"
        ) from None


@dataclass
class Pushed(WriterCommitMessage):
    rows: int


def push(access: Access, options: WriteOptions, sink: str, epoch: int, batches: Iterator[Any]) -> Pushed:
    """In a task: push the rows, in their order. A row without a transactionId gets one of its content, so that another
    attempt of the task pushes the same again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = context.partitionId() if context else 0
    stager = Stager(options, set())
    seen: Counter[bytes] = Counter()
    count = 0
    with closing(Server(access, reached=True)) as server:
        for batch in batches:
            rows = stager.make(batch).to_pylist()
            items, size = [], 0
            for row in rows:
                items.append(_item(row, f"{sink} {epoch} {task}", seen))
                size += len(row["payload"]) + len(row.get("headers") or "")
                if len(items) == AT_ONCE or size >= MOST_PUSH_BYTES:
                    _push(server, items)
                    items, size = [], 0
            if items:
                _push(server, items)
            count += len(rows)
    return Pushed(count)


def _item(row: dict[str, Any], scope: str, seen: Counter[bytes]) -> dict[str, Any]:
    transaction_id, headers = row["transaction_id"], row.get("headers")
    if transaction_id is None:
        named = [scope, row["queue"], row["partition"], *([headers] if headers else [])]
        content = sha256(msgspec.json.encode(named) + row["payload"]).digest()
        seen[content] += 1
        transaction_id = f"{content.hex()}-{seen[content]}"
    item = {"queue": row["queue"], "partition": row["partition"], "transactionId": transaction_id}
    if row["trace_id"] is not None:
        item["traceId"] = row["trace_id"]
    if headers is not None:
        item["headers"] = msgspec.Raw(headers.encode())
    return item | {"payload": msgspec.Raw(row["payload"])}


def _push(server: Server, items: list[dict[str, Any]]) -> None:
    for result in msgspec.json.decode(server.ask("POST", "push", msgspec.json.encode({"items": items}))):
        if result["status"] == "failed":
            raise PipelineError(f"a row cannot be written: {result.get('error')}")


def check_columns(names: list[str]) -> None:
    """Raises BadOption for what a push does not take."""
    if refused := {"messageId", "encrypted"} & set(names):
        raise BadOption(f"rows that are pushed over HTTP have no column {min(refused)!r}: write to PostgreSQL")


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, access: Access, options: WriteOptions) -> None:
        self._access, self._options = access, options
        self._sink = f"batch {options.write_id or uuid7_text()}"

    def write(self, iterator: Iterator[Any]) -> Pushed:
        return push(self._access, self._options, self._sink, 0, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, access: Access, options: WriteOptions) -> None:
        self._access, self._options = access, options

    def write(self, iterator: Iterator[Any]) -> Pushed:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        epoch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or epoch is None:
            raise PipelineError("Spark does not report the query and batch of a task")
        return push(self._access, self._options, f"stream {query}", int(epoch), iterator)
