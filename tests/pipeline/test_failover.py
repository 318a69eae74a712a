"""The database fails over to a standby that lagged: what was acknowledged is gone, and the audit finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.db import Db
from queenmq.config import DatabaseSettings
from queenmq.faults.postgres import CAUGHT_UP, Pair
from queenmq.pipeline.connection import arrow_connection, connection, is_writable
from queenmq.pipeline.jobs import archive as archiving
from queenmq.pipeline.jobs.audit import Settings, audit
from queenmq.pipeline.lake import Lake, sweep
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.runs import Run
from queenmq.pipeline.stream import StreamReader
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture
def both(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Pair]:
    """With the schema, and a standby that nobody waits for."""
    made = Pair(tmp_path, synchronous=False, fsync=False)
    try:
        runner.run(made.start())
        runner.run(made.attach())
        runner.run(_migrate(made.url))
        yield made
    finally:
        runner.run(made.stop())


async def _migrate(url: str) -> None:
    database = Database(DatabaseSettings(), url)
    await database.open()
    await migrate(database)
    await database.close()


def fill(url: str, partitions: int, each: int) -> None:
    with psycopg.connect(url, autocommit=True, options="-c timezone=UTC") as connected:
        Db(url, connected).fill("orders", partitions, each)


def archive(spark: Any, url: str, lake: Path) -> None:
    with Run(url, "archive", "orders", "local", {}) as recorded:
        archiving.archive(spark, archiving.Settings(url=url, queue="orders", lake=str(lake)), recorded)


def findings(spark: Any, url: str, lake: Path) -> list[str]:
    with Run(url, "audit", "orders", "local", {}) as recorded:
        found: list[str] = audit(spark, Settings(url, "orders", str(lake)), recorded).summary["findings"]
    return found


def test_the_audit_finds_what_a_lagging_standby_did_not_have(
    spark: Any, runner: asyncio.Runner, both: Pair, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    fill(both.primary.url, 2, 50)
    archive(spark, both.url, lake)
    runner.run(both.primary.until(CAUGHT_UP))
    # From now on the standby gets nothing, and the primary acknowledges all the same.
    runner.run(both.standby.set("primary_conninfo", ""))
    runner.run(both.primary.until("SELECT count(*) = 0 FROM pg_stat_replication"))
    fill(both.primary.url, 3, 10)
    archive(spark, both.primary.url, lake)
    assert findings(spark, both.primary.url, lake) == []
    both.primary.kill()
    runner.run(both.promote())
    # The offsets are used again: nothing in the database itself shows the loss.
    fill(both.primary.url, 2, 20)
    found = findings(spark, both.url, lake)
    assert [one.partition(", were archived")[0] for one in sorted(found)] == [
        "archive: p0: 10 messages, offsets 51 to 60",
        "archive: p1: 10 messages, offsets 51 to 60",
        "archive: p2: 10 messages, offsets 1 to 10",
    ]
    assert all("the database has lost them" in one for one in found)
    # What may be the only copy is not swept.
    with connection(both.url) as sql:
        assert sweep(sql, Lake(str(lake)), "orders", after=timedelta(seconds=-60)) == 0


def test_of_several_hosts_the_writer_is_used_and_followed(runner: asyncio.Runner, both: Pair) -> None:
    reversed_url = both.url.replace(
        f"{both.primary.host},{both.standby.host}", f"{both.standby.host},{both.primary.host}"
    )
    assert reversed_url != both.url
    for url in (both.url, reversed_url):
        with connection(url) as sql:
            assert is_writable(sql)
        with arrow_connection(url) as arrow, arrow.cursor() as cursor:
            cursor.execute("SELECT NOT pg_is_in_recovery()")
            assert cursor.fetchone() == (True,)
    fill(both.primary.url, 1, 5)
    runner.run(both.primary.until(CAUGHT_UP))
    stream = StreamReader(ReadOptions(url=both.url, queue="orders"), ["value"])
    first = stream.latestOffset(stream.initialOffset(), None)
    # The former primary lives on and answers, but new messages are elsewhere.
    runner.run(both.primary.set("default_transaction_read_only", "on"))
    runner.run(both.promote())
    runner.run(both.primary.set("default_transaction_read_only", "off"))
    fill(both.primary.url, 1, 3)
    assert stream.latestOffset(first, None) != first
    stream.stop()
