"""`queen pipeline bench`: rows a second and CPU of the source, the sink and the jobs, beside other ways to read the
same rows.

Everything happens in queues of its own, which are deleted in the end. Ways that are compared alternate, so that a
machine that gets slower meanwhile does not favour one of them; a rate is the median of the rounds.
"""

from __future__ import annotations

import os
import secrets
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queen_bench.pipeline import over_http
from queen_bench.pipeline.latency import OverHttp, Way, WithinTheDatabase
from queen_bench.pipeline.source import RepeatedDataSource
from queen_bench.processes import Watch, resident_kb
from queenmq.ids import uuid7_text
from queenmq.pipeline.connection import arrow_connection, connection, rows
from queenmq.pipeline.frames import read, read_stream, write, write_stream
from queenmq.pipeline.jobs import archive, audit, replay, window
from queenmq.pipeline.runs import Outcome, Run
from queenmq.pipeline.window_spec import make
from queenmq.storage.statements import versioned

PLAIN: Final = (
    "SELECT p.name, m.\"offset\", m.created_at, m.transaction_id, m.trace_id::text, convert_from(m.payload, 'UTF8') "
    "FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id WHERE p.queue_id = '{queue}'"
)
JDBC_TASKS: Final = 4
STREAM_BATCH: Final = 250_000
LATENCIES: Final = 100
PEAK_S: Final = 0.5
LATENCY_WARM: Final = 10


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    messages: int = 1_000_000
    partitions: int = 1_000
    payload: int = 230
    rounds: int = 3
    jdbc: bool = False
    postgres: int | None = None
    only: tuple[str, ...] = ()
    server: str | None = None
    growth: bool = False


@dataclass
class Measured:
    name: str
    rows: int
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    postgres_cpu: list[float] = field(default_factory=list)
    peak_kb: int = 0

    @property
    def rate(self) -> float:
        return self.rows / statistics.median(self.seconds)

    @property
    def per_core(self) -> float:
        """Rows for a second of CPU, on our side and PostgreSQL's."""
        used = [a + b for a, b in zip(self.cpu, self.postgres_cpu, strict=True)]
        return self.rows / max(0.001, statistics.median(used))


class Peak:
    """The most memory that this process, the JVM and the workers had at once, and their CPU before they end."""

    def __init__(self, watch: Watch) -> None:
        self.kb = 0
        self._watch = watch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.kb = max(self.kb, resident_kb(os.getpid()))
            self._watch.look()
            if self._ended.wait(PEAK_S):
                return


class Bench:
    """The queues and the lake of one run, and its results."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._stem = f"bench-{uuid7_text()[-8:]}"
        self._folder = Path(tempfile.mkdtemp(prefix="queen-bench-"))
        self._watch = Watch(os.getpid(), settings.postgres)
        self.results: dict[str, Measured] = {}
        self.latencies: list[float] = []
        self.steps: dict[str, dict[str, float]] = {}
        self.notes: dict[str, str] = {}

    def queue(self, name: str) -> str:
        return f"{self._stem}-{name}"

    def measure(self, name: str, work: Callable[[], None], count: int | None = None) -> None:
        before, begun = self._watch.usage(), time.perf_counter()
        with Peak(self._watch) as peak:
            work()
            seconds = time.perf_counter() - begun
        after = self._watch.usage()
        found = self.results.setdefault(name, Measured(name, count or self._settings.messages))
        found.seconds.append(seconds)
        found.peak_kb = max(found.peak_kb, peak.kb)
        found.cpu.append((after.server_cpu_s or 0) - (before.server_cpu_s or 0))
        found.postgres_cpu.append((after.postgres_cpu_s or 0) - (before.postgres_cpu_s or 0))

    def wanted(self, name: str) -> bool:
        return not self._settings.only or name in self._settings.only

    def run(self) -> None:
        settings = self._settings
        reads = {
            "read": self._read,
            "read plain": self._plain,
            "read jdbc": self._jdbc,
            "read repeated": self._repeated,
        }
        self._warm()
        self.measure("write", self._write)
        for _ in range(settings.rounds):
            for name, work in reads.items():
                if self.wanted(name) and (name != "read jdbc" or settings.jdbc):
                    self.measure(name, work)
        jobs = {
            "stream": self._stream,
            "archive": self._archive,
            "replay": self._replay,
            "copy": self._copy,
            "window": self._window,
        }
        for name, work in {**jobs, "audit": self._audit}.items():
            if self.wanted(name):
                self.measure(name, work)

        if settings.server and self.wanted("http"):
            self.notes |= over_http.compare(self._spark, settings, self)
        if self.wanted("latency"):
            self._latency()

    def _latency(self) -> None:
        """From a push to the result of a window that is updated, one message at a time."""
        source, target = self.queue("events"), self.queue("updates")
        spec = make(
            {
                "source": source,
                "target": target,
                "window": {"tumbling": "1 hour"},
                "by": ["partition"],
                "aggregates": {"count": "count"},
                "emit": "updates",
            }
        )
        url = self._settings.url
        chosen = window.Settings(url=url, spec=spec, checkpoint=str(self._folder / "latency"), trigger="0 seconds")
        with connection(url) as opened:
            ensured = versioned("SELECT queen.ensure_partitions($1::text[], $2::text[])")
            opened.execute(ensured, ([source] * 2, ["a", "b"]))
            server = self._settings.server
            way: Way = OverHttp(server, source, target) if server else WithinTheDatabase(opened, source, target)
            stop = threading.Event()
            given = (self._spark, chosen, stop, lambda query: self._note_steps("of a batch here", query))
            thread = threading.Thread(target=window.run_until, args=given, daemon=True)
            thread.start()
            try:
                took = [self._one_latency(way, "ab"[n % 2]) for n in range(LATENCY_WARM + LATENCIES)]
            finally:
                stop.set()
                thread.join(60)
        self.latencies = sorted(took[LATENCY_WARM:])
        self._alone()

    def _alone(self) -> None:
        """The same window without us: a source of Spark's own, and a sink that does nothing."""
        from pyspark.sql import functions

        rate = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        counted = rate.groupBy(functions.window("timestamp", "1 hour"), "value").count()
        writer = counted.writeStream.outputMode("update").foreachBatch(
            lambda batch, _: batch.write.format("noop").mode("overwrite").save()
        )
        query = writer.option("checkpointLocation", str(self._folder / "alone")).start()
        try:
            while query.isActive and len(query.recentProgress) < LATENCIES:
                time.sleep(0.2)
            self._note_steps("of a batch with Spark alone", query)
        finally:
            query.stop()

    def _note_steps(self, name: str, query: Any) -> None:
        """How long the steps of a micro-batch took, at the median, in milliseconds."""
        found: dict[str, list[int]] = {}
        for progress in query.recentProgress[LATENCY_WARM:]:
            if progress["numInputRows"]:
                for step, took in progress["durationMs"].items():
                    found.setdefault(step, []).append(took)
        self.steps[name] = {step: statistics.median(took) for step, took in found.items()}

    def _one_latency(self, way: Way, partition: str) -> float:
        begun = time.perf_counter()
        way.trip(partition)
        took = time.perf_counter() - begun
        time.sleep(secrets.randbelow(300) / 1000)
        return took

    def close(self) -> None:
        with connection(self._settings.url) as opened:
            opened.execute("DELETE FROM queen.queues WHERE name LIKE $1", (f"{self._stem}%",))
            opened.execute("DELETE FROM queen.archive_files WHERE queue_name LIKE $1", (f"{self._stem}%",))
            if self._settings.growth:
                # Else the next trial would pay for what this one has left.
                opened.execute("VACUUM (ANALYZE)")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _warm(self) -> None:
        """The first use of everything costs seconds that are not of the work."""
        frame = self._spark.range(10).selectExpr("string(id) AS value")
        write(frame, self._settings.url, self.queue("warm"))
        read(self._spark, self._settings.url, self.queue("warm")).write.format("noop").mode("overwrite").save()

    def frame(self, count: int) -> Any:
        """Rows to write."""
        settings = self._settings
        padding = max(0, settings.payload - 40)
        value = f"to_json(struct(id AS n, id % 100 AS amount, repeat('x', {padding}) AS pad)) AS value"
        key = f"concat('p', id % {settings.partitions}) AS partition"
        return self._spark.range(0, count, 1, 4).selectExpr(value, key)

    def _write(self) -> None:
        settings = self._settings
        write(self.frame(settings.messages), settings.url, self.queue("source"))
        with connection(settings.url) as opened:
            opened.execute("ANALYZE queen.messages")

    def _read(self) -> None:
        found = read(self._spark, self._settings.url, self.queue("source"))
        found.write.format("noop").mode("overwrite").save()

    def _plain(self) -> None:
        """One process, no Spark: ADBC, the fastest way that is known."""
        with connection(self._settings.url) as opened:
            [(queue_id, _, _)] = rows(opened, "pipeline_queue", self.queue("source"))
        with arrow_connection(self._settings.url) as opened, opened.cursor() as cursor:
            cursor.execute(PLAIN.format(queue=queue_id))
            count = sum(batch.num_rows for batch in cursor.fetch_record_batch())
        assert count == self._settings.messages  # noqa: S101 - a measurement of fewer rows would be a lie

    def _jdbc(self) -> None:
        """Spark's own reader, in as many tasks, cut by ranges of the partition id."""
        from psycopg.conninfo import conninfo_to_dict

        with connection(self._settings.url) as opened:
            [(queue_id, _, _)] = rows(opened, "pipeline_queue", self.queue("source"))
        query = PLAIN.format(queue=queue_id)
        bounds = [f"{n:x}" for n in range(0, 16, 16 // JDBC_TASKS)]
        cuts = [f"{b}0000000-0000-0000-0000-000000000000" for b in bounds]
        predicates = [
            f"id >= '{low}'" + (f" AND id < '{high}'" if high else "")
            for low, high in zip(cuts, [*cuts[1:], None], strict=True)
        ]
        table = f"({query.replace('SELECT p.name', 'SELECT m.partition_id AS id, p.name')}) AS t"
        info = conninfo_to_dict(self._settings.url)
        hosts = str(info.get("host", "localhost")).split(",")
        ports = str(info.get("port", 5432)).split(",")
        places = ",".join(f"{host}:{ports[min(place, len(ports) - 1)]}" for place, host in enumerate(hosts))
        url = f"jdbc:postgresql://{places}/{info['dbname']}" + ("?targetServerType=primary" if len(hosts) > 1 else "")
        properties = {
            "user": info["user"],
            "password": info.get("password", ""),
            "fetchsize": "5000",
            "driver": "org.postgresql.Driver",
        }
        found = self._spark.read.jdbc(url, table, predicates=predicates, properties=properties)
        found.write.format("noop").mode("overwrite").save()

    def _repeated(self) -> None:
        """The way from Python into Spark alone: the same few rows again and again."""
        self._spark.dataSource.register(RepeatedDataSource)
        reader = self._spark.read.format(RepeatedDataSource.name()).option("url", self._settings.url)
        reader.option("subscribe", self.queue("source")).load().write.format("noop").mode("overwrite").save()

    def _archive(self) -> None:
        chosen = archive.Settings(url=self._settings.url, queue=self.queue("source"), lake=str(self._folder / "lake"))
        archive.archive(self._spark, chosen, self._run("archive"))

    def _replay(self) -> None:
        source, lake = self.queue("source"), str(self._folder / "lake")
        chosen = replay.Settings(url=self._settings.url, queue=source, lake=lake, into=self.queue("replayed"))
        replay.replay(self._spark, chosen, self._run("replay"))

    def _stream(self) -> None:
        """Reading alone, in several batches."""
        writer = self._source_stream().writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._folder / "stream")).start().awaitTermination()

    def _source_stream(self) -> Any:
        url, queue = self._settings.url, self.queue("source")
        return read_stream(self._spark, url, queue, startingOffsets="earliest", maxOffsetsPerTrigger=STREAM_BATCH)

    def _copy(self) -> None:
        frame = self._source_stream().select("value", "partition")
        checkpoint = str(self._folder / "copy")
        query = (
            write_stream(frame, self._settings.url, self.queue("copy"), checkpoint).trigger(availableNow=True).start()
        )
        query.awaitTermination()

    def _window(self) -> None:
        spec = make(
            {
                "source": self.queue("source"),
                "target": self.queue("windows"),
                "schema": "n BIGINT, amount DOUBLE",
                "window": {"tumbling": "10 seconds"},
                "by": ["partition"],
                "aggregates": {"count": "count", "sum": "sum(data.amount)", "p99": "percentile(data.amount, 0.99)"},
            }
        )
        chosen = window.Settings(
            url=self._settings.url, spec=spec, checkpoint=str(self._folder / "window"), available_now=True
        )
        window.window(self._spark, chosen, self._run("window"))

    def _audit(self) -> None:
        chosen = audit.Settings(self._settings.url, self.queue("source"), str(self._folder / "lake"))
        outcome = audit.audit(self._spark, chosen, self._run("audit"))
        assert outcome.ok, outcome.summary  # noqa: S101 - the figures would be of a broken system

    def _run(self, job: str) -> Run:
        return Run(self._settings.url, job, None, "bench", {})


def bench(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Measure everything once, the reads several times."""
    if settings.growth:
        from queen_bench.pipeline.growth import growth

        return growth(spark, settings, run)
    trial = Bench(spark, settings)
    try:
        trial.run()
    finally:
        trial.close()
    found = trial.results
    summary: dict[str, Any] = {}
    for name, one in found.items():
        cpu = statistics.median(one.cpu), statistics.median(one.postgres_cpu)
        summary[name] = f"{one.rate:,.0f} rows/s, CPU {cpu[0]:.1f} s + PostgreSQL {cpu[1]:.1f} s"
    if "read" in found:
        for name in ("read plain", "read jdbc"):
            if name in found:
                ratio, core = found["read"].rate / found[name].rate, found["read"].per_core / found[name].per_core
                summary[f"read against {name}"] = f"{ratio:.2f} of its rate, {core:.2f} of its rows per second of CPU"
    if took := trial.latencies:
        p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
        summary[f"window, push to result{' popped over HTTP' if settings.server else ''}"] = (
            f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms"
        )
    summary |= trial.notes
    for name, steps in trial.steps.items():
        summary[name] = ", ".join(f"{step} {took:.0f} ms" for step, took in steps.items())
    run.outcome.rows = settings.messages
    run.outcome.summary = summary
    return run.outcome
