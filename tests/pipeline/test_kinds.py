"""Every kind of declared pipeline runs, drains, and goes on in another driver: what it publishes is there once.

Here in the session of the tests; with QUEEN_LONG=1 also with real supervisors, of which the first one is killed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pytest
import yaml

from pipeline.db import Db
from pipeline.supervision import CONF, Site, until
from pipeline.test_sql import table_rows
from pipeline.test_supervised import LONG
from queenmq.cli.main import main
from queenmq.pipeline.declaration import checkpoint, make
from queenmq.pipeline.driver import DriverRun
from queenmq.pipeline.errors import Superseded, explained
from queenmq.pipeline.generation import DRAIN, GENERATION
from queenmq.pipeline.kinds import KINDS
from queenmq.pipeline.leases import Leases

PARTITIONS = 2
SCHEMA = "p INT, n INT"
EVERY = "1 second"


def declarations(folder: Path) -> dict[str, dict[str, Any]]:
    joined = {"left": "orders", "right": "payments", "on": {"data.n": "data.n", "data.p": "data.p"}, "target": "out"}
    schemas = {"orders": SCHEMA, "payments": SCHEMA}
    upsert = {"queue": "orders", "key": ["p", "n"], "schema": SCHEMA, "maxOffsetsPerTrigger": 1000}
    window = {"source": "orders", "target": "out", "by": ["partition"], "window": {"tumbling": "1 hour"}}
    found: dict[str, dict[str, Any]] = {
        "analytics": {"queue": "orders", "lake": str(folder / "lake"), "every": EVERY},
        "archive": {"queue": "orders", "lake": str(folder / "lake"), "every": EVERY},
        "copy": {"source": "orders", "target": "out"},
        "filter": {"source": "orders", "target": "out", "schema": SCHEMA, "where": "data.n % 2 = 0"},
        "join": joined | {"schemas": schemas},
        "sql": {"query": "SELECT value, partition, transactionId FROM STREAM(orders)", "target": "out"},
        "upsert": upsert | {"table": str(folder / "delta")},
        "upsert-iceberg": upsert | {"kind": "upsert", "format": "iceberg", "table": str(folder / "iceberg")},
        "window": {"window": window | {"aggregates": {"orders": "count"}, "emit": "updates", "lateness": "1 hour"}},
    }  # fmt: skip
    for name, one in found.items():
        one.setdefault("kind", name)
        if name not in ("analytics", "archive"):
            one |= {"checkpoint": str(folder / "checkpoint"), "trigger": EVERY}
    return found


def result(db: Db, folder: Path, kind: str) -> Any:
    """What is published, as far as it is the same whenever it comes."""
    if kind == "analytics":
        return bool(db.one("SELECT count(*) FROM queen.pipeline_analytics WHERE queue_name = 'orders'"))
    if kind == "archive":
        return db.one("SELECT coalesce(sum(rows), 0)::int FROM queen.archive_files")
    if kind.startswith("upsert"):
        place = folder / ("iceberg" if kind == "upsert-iceberg" else "delta")
        if not (place / "metadata" / "version-hint.text").exists() and not deltalake.DeltaTable.is_deltatable(
            str(place)
        ):
            return 0
        return table_rows(place, "iceberg" if kind == "upsert-iceberg" else "delta")[0].num_rows
    if kind == "window":
        return {name: found[-1]["orders"] for name, found in db.partitions("out").items()}
    return {name: sorted(one.get("left", one)["n"] for one in found) for name, found in db.partitions("out").items()}


def wanted(kind: str, each: int) -> Any:
    if kind == "analytics":
        return True
    if kind == "archive" or kind.startswith("upsert"):
        return PARTITIONS * each
    step = 2 if kind == "filter" else 1
    numbers = list(range(step, each + 1, step))
    return {f"p{p}": each if kind == "window" else numbers for p in range(PARTITIONS)}


@pytest.mark.parametrize("kind", sorted(declarations(Path()).keys() - {"copy"}))  # test_supervised has it
def test_it_drains_and_another_driver_goes_on(
    spark: Any, db: Db, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pipelines.yaml"
    file.write_text(yaml.safe_dump({"pipelines": {"one": declarations(tmp_path)[kind]}}))
    for queue in ("orders", "payments"):
        db.fill(queue, PARTITIONS, 5)
    assert main(["pipeline", "apply", str(file), "--url", db.url]) == 0
    leases = Leases(db.url, lease_s=600)
    generations = []
    for each in (5, 8):
        [held] = leases.hold(take=True)
        generations.append(leases.begin("one", held.version))
        flag = tmp_path / f"drain-{each}"
        monkeypatch.setenv(GENERATION, f"one:{generations[-1]}")
        monkeypatch.setenv(DRAIN, str(flag))
        drive(
            spark, db, held, generations[-1], flag, lambda each=each: result(db, tmp_path, kind) == wanted(kind, each)
        )
        for queue in ("orders", "payments"):
            db.fill(queue, PARTITIONS, 3)
    assert result(db, tmp_path, kind) == wanted(kind, 8)
    assert db.one("SELECT state FROM queen.pipeline_states") == "draining"
    if kind in ("archive", "analytics", "upsert", "upsert-iceberg"):
        # Those publish in this process, where the driver before is known by its generation. (The sink is tested alone.)
        monkeypatch.setenv(GENERATION, f"one:{generations[0]}")
        with pytest.raises(Exception, match="another driver has taken the place") as told:
            drive(spark, db, held, generations[-1], tmp_path / "drain-last", lambda: False)
        assert isinstance(explained(told.value), Superseded)
        assert result(db, tmp_path, kind) == wanted(kind, 8)
    leases.close()


def drive(spark: Any, db: Db, held: Any, generation: int, flag: Path, done: Callable[[], bool]) -> None:
    """What the process of a driver does, until it is `done` and has drained. Raises what the job fails with."""
    declared = make(held.name, held.declaration, KINDS)
    order = {"url": db.url, "name": held.name, "version": held.version, "generation": generation}
    job = declared.plan.job(db.url, checkpoint(declared.plan, held.state_number))
    failure: list[BaseException] = []
    run = DriverRun(order, declared.kind, "orders", "local[2]")

    def work() -> None:
        try:
            with run:
                run.running()
                job(spark, run)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: failure or done(), lambda: json.dumps(run.outcome.summary))
    finally:
        flag.touch()
        run.drain.set()
        thread.join()
    if failure:
        raise failure[0]


@pytest.mark.skipif(not LONG, reason="starts two drivers for each kind: QUEEN_LONG=1")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", sorted(declarations(Path())))
def test_another_supervisor_takes_it_over(site: Site, tmp_path: Path, kind: str) -> None:
    def fill(each: int) -> None:
        for queue in ("orders", "payments"):
            site.postgres.ask(lambda db, queue=queue: db.fill(queue, PARTITIONS, each))

    def there(each: int) -> bool:
        return bool(site.postgres.ask(lambda db: result(db, tmp_path, kind) == wanted(kind, each)))

    fill(5)
    assert site.apply(copy=declarations(tmp_path)[kind] | {"master": "local[2]", "conf": CONF}) == 0
    first, second = site.run(), site.run()
    until(lambda: there(5), site.said)
    holder, spare = (first, second) if first.drivers() else (second, first)
    orphan = holder.drivers()[0]
    holder.kill()
    fill(3)
    until(spare.drivers, "the second supervisor takes over")
    until(lambda: there(8), site.said)
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    until(lambda: not orphan.is_running() or orphan.status() in gone, "the driver without a supervisor ends")
    until(lambda: site.status()["state"] == "running", site.said)
    assert spare.stop() == 0, "it drains in time"
    assert site.status()["state"] == "stopped"
    assert there(8)
