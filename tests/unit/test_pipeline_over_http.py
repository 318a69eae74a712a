"""Reads over HTTP from a server whose partitions are dropped and made between two answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from queenmq.pipeline import over_http
from queenmq.pipeline.errors import DataLost
from queenmq.pipeline.options import parse_read
from queenmq.pipeline.over_http import PAGE, StreamReader, heads
from queenmq.pipeline.server import Access

Document = dict[str, Any]
URL = "http://127.0.0.1:1"


class Fake:
    """Answers from `partitions`: by name the first and the last offset. `between` is done after each page."""

    def __init__(self, count: int, most: int = PAGE) -> None:
        self.partitions = {f"p{n:05}": (1, 10) for n in range(count)}
        self.most = most
        self.pages = 0
        self.between: Callable[[int], None] = lambda _: None

    def get(self, *path: str, limit: int, offset: int) -> Document:
        assert path == ("resources", "queues", "orders", "partitions")
        limit = min(limit, self.most)
        names = sorted(self.partitions)[offset : offset + limit]
        found = [
            {"id": f"id {name}", "name": name, "firstOffset": first, "lastOffset": last}
            for name in names
            for first, last in [self.partitions[name]]
        ]
        self.pages += 1
        self.between(self.pages)
        return {"partitions": found, "pagination": {"limit": limit, "offset": offset}}

    def drop(self, first: int, count: int = 1) -> None:
        for name in sorted(self.partitions)[first : first + count]:
            del self.partitions[name]


def every(fake: Fake) -> set[str]:
    return {head.name for head in heads(fake, parse_read({"url": URL, "subscribe": "orders"}, streaming=True)).values()}  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE + 7])
@pytest.mark.parametrize("most", [1, 2, 100, PAGE])
def test_all_partitions_are_listed(count: int, most: int) -> None:
    fake = Fake(min(count, 20 * most), most)
    assert every(fake) == fake.partitions.keys()


@pytest.mark.parametrize("dropped", [1, 49, 50, 51, 500, PAGE])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_none_is_skipped_while_others_are_dropped(dropped: int, after: int) -> None:
    fake = Fake(3 * PAGE + 7)
    fake.between = lambda page: fake.drop(0, dropped) if page == after else None
    assert fake.partitions.keys() <= every(fake)


def test_none_is_skipped_while_partitions_come_and_go() -> None:
    fake = Fake(5 * PAGE)
    stay = set(sorted(fake.partitions)[PAGE:])

    def change(page: int) -> None:
        if page <= 8:
            fake.drop(0, 90)
            fake.partitions |= {f"o{page}-{n}": (1, 1) for n in range(20)}

    fake.between = change
    assert stay <= every(fake)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(3)
    monkeypatch.setattr(over_http, "Server", lambda _: made)
    return made


def reader_of(**options: str) -> StreamReader:
    asked = parse_read({"url": URL, "subscribe": "orders", "startingOffsets": "earliest", **options}, streaming=True)
    return StreamReader(Access(URL), asked, ["partition", "offset", "value"])


def planned(reader: StreamReader) -> tuple[Document, Document]:
    start = reader.initialOffset()
    return start, reader.latestOffset(start, reader.getDefaultReadLimit())


def read_by(reader: StreamReader, start: Document, end: Document) -> dict[str, tuple[int, int]]:
    parts = [part for one in reader.partitions(start, end) for part in one.task.ranges]
    return {part.partition: (part.first, part.last) for part in parts}


def test_a_partition_that_is_dropped_before_its_batch_is_read_is_loss(fake: Fake) -> None:
    reader, careless = reader_of(), reader_of(failOnDataLoss="false")
    start, end = planned(reader)
    assert read_by(reader, start, end) == dict.fromkeys(("p00000", "p00001", "p00002"), (1, 10))
    fake.drop(1)
    with pytest.raises(DataLost, match="the partition with the id id p00001"):
        reader.partitions(start, end)
    assert read_by(careless, start, end) == dict.fromkeys(("p00000", "p00002"), (1, 10))
    assert read_by(reader, end, end) == {}, "what was read is no loss"


def test_messages_that_are_deleted_before_their_batch_is_read_are_loss(fake: Fake) -> None:
    reader, careless = reader_of(), reader_of(failOnDataLoss="false")
    start, end = planned(reader)
    fake.partitions |= {"p00001": (4, 12), "p00002": (13, 12)}
    with pytest.raises(DataLost, match="3 of partition 'p00001', 10 of partition 'p00002'"):
        reader.partitions(start, end)
    assert read_by(careless, start, end) == {"p00000": (1, 10), "p00001": (4, 10)}


def test_a_batch_is_read_as_it_was_planned(fake: Fake) -> None:
    start, end = planned(reader_of())
    assert len(read_by(reader_of(partitions="p00001"), start, end)) == 3
