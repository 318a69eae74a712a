"""Batch reads: what is stored, all of it, once, bounded as the options say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipeline.db import Db
from queenmq.core.encryption import PayloadKeys, Place
from queenmq.pipeline import columns, read, reading
from queenmq.pipeline.batch import BatchReader
from queenmq.pipeline.connection import arrow_connection, connection
from queenmq.pipeline.errors import BadOption, DatabaseAway, DataLost, PipelineError, explained
from queenmq.pipeline.heads import batch_ranges
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.patience import Patience
from queenmq.pipeline.planning import Portion, Range, Slice
from queenmq.pipeline.reading import read_slice

KEY = bytes(range(32))


def refused(spark: Any, url: str, queue: str, **options: Any) -> str:
    """The sentence that a read is refused with."""
    with pytest.raises(Exception) as raised:
        read(spark, url, queue, **options).collect()
    told = explained(raised.value)
    assert isinstance(told, BadOption | DataLost)
    return told.message


def test_everything_is_read_once_with_its_columns(spark: Any, db: Db) -> None:
    db.fill("orders", 7, 300)
    db.fill("orders", 1, 30_000)
    found = read(spark, db.url, "orders", minPartitions=4).collect()
    keys = {(row["partition"], row["offset"]) for row in found}
    assert len(found) == len(keys) == 6 * 300 + 30_300
    one = next(row for row in found if (row["partition"], row["offset"]) == ("p3", 17))
    assert (one["queue"], one["transactionId"], one["traceId"]) == ("orders", "17", None)
    assert json.loads(one["value"]) == {"p": 3, "n": 17, "pad": ""}
    assert one["timestamp"].timestamp() == pytest.approx(
        db.one("SELECT extract(epoch FROM max(created_at))::float FROM queen.messages"), abs=60
    )


def test_rows_come_in_the_order_of_their_partition(spark: Any, db: Db) -> None:
    db.fill("orders", 3, 4000)
    rows = read(spark, db.url, "orders", columns="partition string, offset long", minPartitions=2).collect()
    partitions: dict[str, list[int]] = {}
    for row in rows:
        partitions.setdefault(row["partition"], []).append(row["offset"])
    assert partitions == {f"p{n}": list(range(1, 4001)) for n in range(3)}


def test_variants(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 4)
    for offset, payload in enumerate(('{"v": {"a": [1, 2.5]}}', '{"v": "x"}', '{"v": null}', '{"v": %s}' % 10**40), 1):
        db.sql(f'UPDATE queen.messages SET payload = %s WHERE "offset" = {offset}', payload.encode())
    found = read(spark, db.url, "orders", valueSchema="v VARIANT").orderBy("offset")
    assert found.schema["data"].dataType.simpleString() == "struct<v:variant>"
    rows = found.selectExpr("to_json(data.v) AS text", "try_variant_get(data.v, '$.a[1]', 'double') AS one").collect()
    assert [(row["text"], row["one"]) for row in rows[:3]] == [('{"a":[1,2.5]}', 2.5), ('"x"', None), (None, None)]
    assert rows[3]["one"] is None, "a number that no variant holds is null"


class TestTables:
    """In SQL, as Spark's own sources are used."""

    @pytest.fixture
    def options(self, db: Db, tmp_path: Path) -> str:
        """The password is in a file: a table shows its options to everybody."""
        db.fill("orders", 2, 5)
        parts = urlsplit(db.url)
        (tmp_path / "passwords").write_text(f"*:*:*:*:{parts.password}\n")
        (tmp_path / "passwords").chmod(0o600)
        url = f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}?passfile={tmp_path}/passwords"
        return f"url '{url}', subscribe 'orders', partitions 'p1', valueSchema 'n INT', includeHeaders 'true'"

    def test_a_table_of_the_catalog_is_read_with_its_options(self, spark: Any, db: Db, options: str) -> None:
        spark.sql(f"CREATE TABLE of_orders USING queen OPTIONS ({options})")
        try:
            found = spark.sql("SELECT partition, offset, data.n, messageId FROM of_orders ORDER BY offset").collect()
            assert [(row["partition"], row["offset"], row["n"]) for row in found] == [("p1", n, n) for n in range(1, 6)]
            db.fill("orders", 2, 1)
            assert spark.table("of_orders").count() == 6, "it is read when it is asked for"
            [row] = spark.sql("SELECT count(*) AS n FROM of_orders WITH ('partitions' = '[\"p0\", \"p1\"]')").collect()
            assert row["n"] == 12
            with pytest.raises(Exception) as raised:
                spark.sql("INSERT INTO of_orders SELECT * FROM of_orders")
            assert "write with format('queen')" in explained(raised.value).message
        finally:
            spark.sql("DROP TABLE of_orders")

    def test_a_table_shows_no_password_and_no_key(self, spark: Any, db: Db, options: str) -> None:
        key = f"{options}, encryptionKey '{KEY.hex()}'"
        sealed = options.replace("?passfile", "?sslpassword=x&passfile")
        for given in (f"url '{db.url}', subscribe 'orders'", key, sealed):
            with pytest.raises(Exception) as raised:
                spark.sql(f"CREATE TABLE of_orders USING queen OPTIONS ({given})")
            assert "CREATE TEMPORARY VIEW … USING queen" in explained(raised.value).message

    def test_a_table_with_a_list_of_columns_is_refused(self, spark: Any, options: str) -> None:
        """Spark does not ask when it is made, so whoever reads it is told."""
        spark.sql(f"CREATE TABLE of_orders (value STRING) USING queen OPTIONS ({options})")
        try:
            with pytest.raises(Exception) as raised:
                spark.sql("SELECT value FROM of_orders").collect()
            assert "Drop this table" in explained(raised.value).message
        finally:
            spark.sql("DROP TABLE of_orders")

    def test_a_view_is_read_with_its_options(self, spark: Any, db: Db) -> None:
        db.fill("orders", 2, 5)
        options = f"url '{db.url}', subscribe 'orders'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW view_of_orders USING queen OPTIONS ({options})")
        assert spark.sql("SELECT * FROM view_of_orders WHERE partition = 'p0'").count() == 5


def test_headers_and_parsed_values(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 2)
    rows = read(spark, db.url, "orders", includeHeaders=True, valueSchema="n BIGINT, p INT").orderBy("offset").collect()
    assert [(row["data"]["n"], row["data"]["p"], row["encrypted"]) for row in rows] == [(1, 0, False), (2, 0, False)]
    ids = db.sql('SELECT id::text, partition_id::text FROM queen.messages ORDER BY "offset"')
    assert [(row["messageId"], row["partitionId"]) for row in rows] == ids


class TestBounds:
    @pytest.fixture(autouse=True)
    def filled(self, db: Db) -> None:
        db.fill("orders", 3, 10)

    def offsets(self, spark: Any, db: Db, **options: Any) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in read(spark, db.url, "orders", columns="partition string, offset long", **options).collect():
            found.setdefault(row["partition"], []).append(row["offset"])
        return found

    def test_offsets(self, spark: Any, db: Db) -> None:
        start, end = json.dumps({"orders": {"p0": 4, "p1": -2}}), json.dumps({"p0": 6, "p1": 2, "p2": 1})
        assert self.offsets(spark, db, startingOffsets=start, endingOffsets=end) == {"p0": [4, 5], "p1": [1]}

    def test_partitions(self, spark: Any, db: Db) -> None:
        assert self.offsets(spark, db, partitions='["p1"]') == {"p1": list(range(1, 11))}

    def test_times(self, spark: Any, db: Db) -> None:
        db.sql("""UPDATE queen.messages SET created_at = '2026-01-01'::timestamptz + "offset" * interval '1 minute'""")
        db.sql("UPDATE queen.partition_lookup SET last_message_at = '2026-01-01T00:10Z'")
        start, end = "2026-01-01T00:04:00Z", "2026-01-01T00:06:00Z"
        found = self.offsets(spark, db, startingTimestamp=start, endingTimestamp=end)
        assert found == {"p0": [4, 5], "p1": [4, 5], "p2": [4, 5]}

    def test_what_was_deleted_is_told(self, spark: Any, db: Db) -> None:
        db.sql("SELECT queen.trim(id, 5) FROM queen.partitions WHERE name = 'p0'")
        start = json.dumps({"p0": 2})
        assert "already deleted: p0 from 2 (stored from 6)" in refused(spark, db.url, "orders", startingOffsets=start)
        found = self.offsets(spark, db, startingOffsets=start, failOnDataLoss=False)
        assert found["p0"] == [6, 7, 8, 9, 10]
        assert self.offsets(spark, db)["p0"] == [6, 7, 8, 9, 10]

    def test_wrong_bounds_are_told_before_any_work(self, spark: Any, db: Db) -> None:
        assert "no partition p9" in refused(spark, db.url, "orders", partitions='["p9"]')
        assert "the last one is 10" in refused(spark, db.url, "orders", startingOffsets='{"p0": 99}')
        assert "there is no queue 'nope'" in refused(spark, db.url, "nope")
        assert "did you mean" in refused(spark, db.url, "orders", startingOffset="latest")
        assert "no column 'colour'" in refused(spark, db.url, "orders", columns="colour string")


def test_an_empty_queue_is_an_empty_frame(spark: Any, db: Db) -> None:
    db.make("empty")
    assert read(spark, db.url, "empty").count() == 0


def test_groups_are_left_alone(spark: Any, db: Db) -> None:
    db.fill("orders", 2, 5)
    before = db.sql("SELECT * FROM queen.partition_consumers"), db.sql("SELECT * FROM queen.consumer_groups")
    assert read(spark, db.url, "orders").count() == 10
    assert (db.sql("SELECT * FROM queen.partition_consumers"), db.sql("SELECT * FROM queen.consumer_groups")) == before


class TestEncryption:
    @pytest.fixture(autouse=True)
    def filled(self, db: Db) -> None:
        db.fill("orders", 1, 2)
        [(partition, key)] = db.sql(
            "SELECT p.name, m.transaction_id FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
            'WHERE m."offset" = 2'
        )
        record = PayloadKeys([KEY]).encrypt(b'{"secret": 1}', Place("orders", partition, key))
        db.sql('UPDATE queen.messages SET payload = %s, is_encrypted = true WHERE "offset" = 2', record)
        db.make("orders", encryption_enabled=True)

    def test_without_the_key_nothing_is_read(self, spark: Any, db: Db) -> None:
        assert "give encryptionKey" in refused(spark, db.url, "orders")

    def test_with_the_key(self, spark: Any, db: Db) -> None:
        rows = read(spark, db.url, "orders", encryptionKey=KEY.hex()).orderBy("offset").collect()
        assert [json.loads(row["value"]).get("secret") for row in rows] == [None, 1]

    def test_with_several_keys(self, spark: Any, db: Db) -> None:
        rows = read(spark, db.url, "orders", encryptionKey=f"{'00' * 32}, {KEY.hex()}").orderBy("offset").collect()
        assert [json.loads(row["value"]).get("secret") for row in rows] == [None, 1]

    def test_in_the_place_of_another_message(self, spark: Any, db: Db) -> None:
        db.sql('UPDATE queen.messages SET transaction_id = %s WHERE "offset" = 2', "another")
        with pytest.raises(Exception, match="belongs to another message"):
            read(spark, db.url, "orders", encryptionKey=KEY.hex()).collect()

    def test_with_another_key(self, spark: Any, db: Db) -> None:
        with pytest.raises(Exception, match="cannot be decrypted"):
            read(spark, db.url, "orders", encryptionKey="00" * 32).collect()

    def test_as_null_and_as_it_is_stored(self, spark: Any, db: Db) -> None:
        rows = read(spark, db.url, "orders", encryptedPayloads="null").orderBy("offset").collect()
        assert [row["value"] is None for row in rows] == [False, True]
        rows = read(spark, db.url, "orders", encryptedPayloads="raw").orderBy("offset").collect()
        assert set(json.loads(rows[1]["value"])) == {"key", "encrypted", "iv", "authTag"}


def test_a_read_holds_no_long_transaction(db: Db) -> None:
    """While a consumer takes its time over a batch, the session is at most in one short statement."""
    db.fill("orders", 1, 5000, padding=20_000)
    options = ReadOptions(url=db.url, queue="orders")
    with connection(db.url) as opened:
        ranges = batch_ranges(opened, options)
    seen = set()
    for number, _ in enumerate(read_slice(options, ["offset", "value"], Slice(ranges))):
        if number % 5 == 0:
            seen.add(db.one("SELECT min(xact_start) FROM pg_stat_activity WHERE application_name = 'queen pipeline'"))
    assert len(seen) > 2, "one statement has read everything"


def test_a_read_that_loses_messages_meanwhile_says_so(db: Db) -> None:
    db.fill("orders", 1, 100)
    partition = db.one("SELECT id::text FROM queen.partitions WHERE name = 'p0'")
    task = Slice([Range(partition, "p0", 1, 100)])
    db.sql("SELECT queen.trim(id, 5) FROM queen.partitions WHERE name = 'p0'")
    with pytest.raises(DataLost, match="5 messages of queue 'orders', partition 'p0', were deleted"):
        list(read_slice(ReadOptions(url=db.url, queue="orders"), ["offset"], task))
    kept = read_slice(ReadOptions(url=db.url, queue="orders", fail_on_data_loss=False), ["offset"], task)
    assert sum(batch.num_rows for batch in kept) == 95
    assert threading.active_count() < 50


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["packed", "one by one"])
def test_a_session_that_ends_meanwhile_is_replaced_or_told_in_a_sentence(
    db: Db, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.fill("orders", 1, 2000, padding=16_000)
    db.sql("UPDATE queen.messages SET is_encrypted = %s", is_encrypted)
    options = ReadOptions(url=db.url, queue="orders", encrypted="raw")
    with connection(db.url) as opened:
        ranges = batch_ranges(opened, options)

    def begun() -> tuple[Iterator[Any], list[int]]:
        batches = read_slice(options, ["offset", "value"], Slice(ranges))
        first = next(batches).column("offset").to_pylist()
        db.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'queen pipeline' AND datname = current_database()"
        )
        return batches, first

    batches, found = begun()
    for batch in batches:
        found += batch.column("offset").to_pylist()
    assert found == list(range(1, 2001))

    def impatient(self: Patience, error: DatabaseAway) -> None:
        raise error

    monkeypatch.setattr(Patience, "failed", impatient)
    batches, _ = begun()
    with pytest.raises(DatabaseAway, match="the connection to PostgreSQL was lost"):
        list(batches)


@pytest.mark.parametrize("opened", [connection, arrow_connection])
@pytest.mark.parametrize("password", ["%hush", "a hush", "a@hush"])
def test_a_url_that_cannot_be_read_is_told_without_the_password(opened: Any, password: str) -> None:
    with (
        pytest.raises(PipelineError, match="the URL cannot be read") as raised,
        opened(f"postgresql://u:{password}@h/d"),
    ):
        pass
    assert "hush" not in raised.value.message


def test_options_of_the_url_hold_beside_ours(db: Db) -> None:
    with connection(f"{db.url}?options=-c%20work_mem%3D70MB%20-c%20timezone%3DAsia/Tokyo") as opened:
        shown = [opened.execute(f"SHOW {name}").fetchone()[0] for name in ("work_mem", "timezone", "jit")]
    assert shown == ["70MB", "UTC", "off"]


class TestPacked:
    """Messages come packed, a range of a partition in a row, as long as they allow it."""

    NAMES = (*columns.BASE, *columns.HEADERS)

    @pytest.fixture
    def one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> list[Portion]:
        """What was read one by one."""
        seen: list[Portion] = []
        real = reading._Reader._read_single

        def watched(reader: Any, portion: Portion) -> Any:
            seen.append(portion)
            return real(reader, portion)

        monkeypatch.setattr(reading._Reader, "_read_single", watched)
        return seen

    def rows(self, db: Db, names: list[str] | None = None, **given: Any) -> list[dict[str, Any]]:
        options = ReadOptions(url=db.url, queue="orders", headers=True, **given)
        with connection(db.url) as opened:
            ranges = batch_ranges(opened, options)
        return [
            row for batch in read_slice(options, names or list(self.NAMES), Slice(ranges)) for row in batch.to_pylist()
        ]

    def stored(self, db: Db) -> list[tuple[Any, ...]]:
        return db.sql(
            'SELECT p.name, m."offset", m.created_at, m.transaction_id, m.trace_id::text, '
            "convert_from(m.payload, 'UTF8'), m.id::text, p.id::text FROM queen.messages m "
            'JOIN queen.partitions p ON p.id = m.partition_id ORDER BY p.id, m."offset"'
        )

    def assert_all(self, db: Db, found: list[dict[str, Any]]) -> None:
        got = [tuple(row[name] for name in (*columns.BASE[1:], *columns.HEADERS[:2])) for row in found]
        assert sorted(got, key=lambda row: (row[-1], row[1])) == self.stored(db)
        assert {row["queue"] for row in found} == {"orders"}

    def test_every_column_is_as_it_is_stored(self, db: Db, one_by_one: list[Portion]) -> None:
        db.fill("orders", 5, 700)
        db.fill("orders", 1, 9000, padding=300)
        self.vary(db)
        found = self.rows(db)
        assert len(found) == 5 * 700 + 9000
        self.assert_all(db, found)
        assert not one_by_one

    def vary(self, db: Db) -> None:
        """Transaction ids and payloads of every length and script, trace ids everywhere."""
        db.sql(
            'UPDATE queen.messages SET transaction_id = repeat(\'é\', ("offset" %% 5)::int) || "offset", '
            'trace_id = gen_random_uuid(), created_at = created_at - make_interval(secs => "offset" * 1000003), '
            "payload = convert_to(to_json(repeat('ß☃x', (\"offset\" %% 7)::int))::text, 'UTF8')"
        )

    def test_without_payloads(self, db: Db, one_by_one: list[Portion]) -> None:
        db.fill("orders", 2, 500, padding=20_000)
        found = self.rows(db, ["partition", "offset", "traceId", "encrypted"])
        assert [row["offset"] for row in found] == [*range(1, 501)] * 2
        assert {(row["traceId"], row["encrypted"]) for row in found} == {(None, False)}
        assert not one_by_one

    @pytest.mark.parametrize(
        "special",
        [
            pytest.param("trace_id = gen_random_uuid()", id="some have a trace id"),
            pytest.param("payload = convert_to(to_json(repeat('y', 16383))::text, 'UTF8')", id="a large payload"),
            pytest.param("is_encrypted = true", id="an encrypted one"),
        ],
    )
    def test_what_cannot_be_packed_is_read_one_by_one(self, db: Db, one_by_one: list[Portion], special: str) -> None:
        db.fill("orders", 3, 3000)
        db.sql(f'UPDATE queen.messages SET {special} WHERE "offset" = 2500')
        found = self.rows(db, encrypted="raw")
        assert len(found) == 9000
        self.assert_all(db, found)
        assert one_by_one
        assert sum(row["encrypted"] for row in found) == (3 if "encrypted" in special else 0)

    def test_many_ranges_of_a_few_messages_are_read_one_by_one(
        self, db: Db, one_by_one: list[Portion], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        db.fill("orders", 500, 3)
        self.vary(db)
        self.assert_all(db, self.rows(db))
        assert not one_by_one
        monkeypatch.setattr(reading, "MANY_RANGES", 500)
        self.assert_all(db, self.rows(db))
        assert one_by_one

    def test_no_task_has_two_sessions(self, db: Db, one_by_one: list[Portion]) -> None:
        db.fill("orders", 1, 3000)
        db.sql('UPDATE queen.messages SET is_encrypted = true WHERE "offset" = 1500')
        options = ReadOptions(url=db.url, queue="orders", encrypted="raw")
        with connection(db.url) as opened:
            ranges = batch_ranges(opened, options)
        read = 0
        for batch in read_slice(options, ["offset", "value"], Slice(ranges)):
            read += batch.num_rows
            self.assert_one_session(db)
        assert read == 3000
        assert one_by_one

    def assert_one_session(self, db: Db) -> None:
        """One that has ended is still shown for a moment."""
        count = (
            "SELECT count(*), pg_sleep(0.01) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'queen pipeline'"
        )
        deadline = time.monotonic() + 15
        while (found := db.sql(count)[0][0]) > 1:
            assert time.monotonic() < deadline, f"{found} sessions"

    def test_what_is_missing_is_left_out(self, db: Db, one_by_one: list[Portion]) -> None:
        db.fill("orders", 2, 3000)
        db.sql('DELETE FROM queen.messages WHERE "offset" = 1500')
        found = self.rows(db, fail_on_data_loss=False)
        assert len(found) == 5998
        self.assert_all(db, found)
        assert one_by_one


def test_values_that_are_not_of_their_type_can_be_refused(spark: Any, db: Db) -> None:
    db.fill("orders", 1, 3)
    db.sql('UPDATE queen.messages SET payload = \'{"p": "zero"}\' WHERE "offset" = 2')
    options = {"valueSchema": "p BIGINT, n BIGINT"}
    found = read(spark, db.url, "orders", **options).orderBy("offset").select("data.p").collect()
    assert [row["p"] for row in found] == [0, None, 0]
    with pytest.raises(Exception) as raised:
        read(spark, db.url, "orders", badValues="fail", **options).collect()
    assert "partition 'p0', offset 2: p should be long and is 'zero'" in explained(raised.value).message
    lenient = read(spark, db.url, "orders", badValues="fail", lenientFields='["p"]', **options)
    assert lenient.where("data.p IS NULL").count() == 1


@pytest.mark.parametrize("payloads", ["small", "large"])
def test_messages_deleted_by_hand_are_no_loss(db: Db, payloads: str) -> None:
    db.fill("orders", 3, 2000, padding=20_000 if payloads == "large" else 0)
    gone = [1, 2, 500, 501, 502, 1999, 2000]
    for one in gone:
        db.delete_message("p1", str(one))
    reader = BatchReader(ReadOptions(url=db.url, queue="orders"), ["partition", "offset", "value"])
    found: dict[str, list[int]] = {}
    for task in reader.partitions():
        for batch in reader.read(task):
            for row in batch.select(["partition", "offset"]).to_pylist():
                found.setdefault(row["partition"], []).append(row["offset"])
    whole = list(range(1, 2001))
    assert found == {"p0": whole, "p1": [n for n in whole if n not in gone], "p2": whole}
