"""A database whose texts are not UTF-8: what is written and read are the same characters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from queenmq.config import DatabaseSettings
from queenmq.pipeline import promotion, sink
from queenmq.pipeline.connection import connection
from queenmq.pipeline.heads import batch_ranges
from queenmq.pipeline.options import ReadOptions, WriteOptions
from queenmq.pipeline.planning import Slice
from queenmq.pipeline.reading import read_slice
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate

if TYPE_CHECKING:
    from conftest import Postgres

# The first two have 3 and 2 bytes in EUC_JP, 2 and 3 in UTF-8: all of them together have as many in both.
WORDS = ["é", "漢", "b", "ascii"]


@pytest.fixture
async def url(postgres: Postgres) -> AsyncIterator[str]:
    made = await postgres.create("template0", "ENCODING 'EUC_JP' LOCALE 'C'")
    database = Database(DatabaseSettings(), made)
    await database.open()
    await migrate(database)
    await database.close()
    yield made
    await postgres.drop(made)


def test_texts_are_the_same_characters(url: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [f'"{word}"' for word in WORDS], "transactionId": WORDS})
    target = WriteOptions(url=url, queue="漢é")
    promotion.promote(target, "batch test", 0, [sink.stage(target, "batch test", 0, iter([rows]))])
    with psycopg.connect(url, client_encoding="UTF8") as opened:
        stored = opened.execute('SELECT transaction_id FROM queen.messages ORDER BY "offset"').fetchall()
    assert stored == [(word,) for word in WORDS]

    options = ReadOptions(url=url, queue="漢é")
    with connection(url) as opened:
        ranges = batch_ranges(opened, options)
    batches = read_slice(options, ["transactionId", "value"], Slice(ranges))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert found == [{"transactionId": word, "value": f'"{word}"'} for word in WORDS]
