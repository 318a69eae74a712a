"""Declared pipelines under a supervisor, with real processes: kills, takeovers, redeploys; exactly once by id."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.supervision import CONF, HALF_DONE, Site, SupervisorProcess, held, until
from queenmq.cli.main import main

LONG = bool(os.environ.get("QUEEN_LONG"))
# Batches are larger than `commitRows`, so that most are decided and then moved in steps.
COPY: dict[str, Any] = {
    "kind": "copy",
    "source": "orders",
    "target": "copies",
    "master": "local[2]",
    "conf": CONF,
    "commitRows": 10,
}


def health(one: SupervisorProcess, path: str = "/health") -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{one.port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.timeout(900)
def test_kills_of_everything_lose_nothing_and_double_nothing(site: Site, tmp_path: Path) -> None:
    """One life: driver killed, PostgreSQL restarted, supervisor killed, takeover with another version, drain."""
    site.fill(20)
    declared = COPY | {"checkpoint": str(tmp_path / "c")}
    assert site.apply(copy=declared) == 0
    first, second = site.run(), site.run()
    site.caught_up()
    holder, spare = (first, second) if first.drivers() else (second, first)
    assert spare.drivers() == []
    assert health(holder)[0] == health(spare)[0] == 200

    with held(site.postgres.url, "copies"):
        site.fill(20)
        until(lambda: site.postgres.ask(lambda db: db.one(HALF_DONE)), site.said)
        holder.drivers()[0].kill()
    site.fill(20)
    site.caught_up()
    found = site.status()
    assert (found["starts"], found["error"]) == (2, "the driver was ended by signal 9")

    site.postgres.restart()
    site.fill(20)
    site.caught_up()
    assert len(holder.drivers()) == 1

    orphan = holder.drivers()[0]
    holder.kill()
    assert site.apply(copy=declared | {"where": "partition <> 'nowhere'"}) == 0
    site.fill(20)
    until(spare.drivers, "the second supervisor takes over")
    site.caught_up()
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    until(lambda: not orphan.is_running() or orphan.status() in gone, "the driver without a supervisor ends")
    found = site.status()
    assert (found["version"], found["starts"]) == (2, 3)
    assert found["positions"] != {}

    assert spare.stop() == 0
    assert "draining" in site.said()
    found = site.status()
    assert (found["state"], found["holder_name"]) == ("stopped", None)
    assert found["rows"] > 0
    site.audit()


@pytest.mark.skipif(not LONG, reason="starts drivers one after the other: QUEEN_LONG=1")
@pytest.mark.timeout(900)
def test_another_version_drains_the_one_before(site: Site, tmp_path: Path) -> None:
    site.fill(20)
    declared = COPY | {"checkpoint": str(tmp_path / "c")}
    assert site.apply(copy=declared) == 0
    one = site.run()
    site.caught_up()
    for version in (2, 3):
        site.fill(50)
        assert site.apply(copy=declared | {"trigger": f"{version} seconds"}) == 0
        until(lambda version=version: site.status()["version"] == version, site.said)
        site.fill(20)
        site.caught_up()
    assert site.status()["error"] is None
    assert one.stop() == 0
    site.audit()


@pytest.mark.skipif(not LONG, reason="starts drivers one after the other: QUEEN_LONG=1")
@pytest.mark.timeout(900)
def test_a_paused_driver_publishes_nothing_beside_its_successor(site: Site, tmp_path: Path) -> None:
    """Everything of the old one is stopped in the middle of its work, and goes on when another one has its place."""
    site.fill(200)
    assert site.apply(copy=COPY | {"checkpoint": str(tmp_path / "c"), "maxOffsetsPerTrigger": 50}) == 0
    old = site.run()
    until(lambda: site.postgres.ask(lambda db: db.one("SELECT count(*) > 1 FROM queen.pipeline_commits")), site.said)
    processes = [*psutil.Process(old.process.pid).children(recursive=True), psutil.Process(old.process.pid)]
    for one in processes:
        one.suspend()
    generation = site.status()["generation"]
    new = site.run()
    try:
        until(lambda: site.status()["generation"] > generation + 1, "the second supervisor starts a driver")
        until(new.drivers, "its driver")
    finally:
        for one in processes:
            if one.is_running():
                one.resume()
    site.caught_up()
    until(lambda: old.drivers() == [], "the old supervisor has ended its driver")
    assert site.apply(copy=COPY | {"checkpoint": str(tmp_path / "c")}) == 0  # also under another version
    site.fill(20)
    site.caught_up()
    site.audit()


@pytest.mark.skipif(not LONG, reason="starts drivers one after the other: QUEEN_LONG=1")
@pytest.mark.timeout(900)
def test_what_cannot_go_on_waits_for_a_person(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A condition that Spark refuses is tried again with pauses; the error is there for everybody to read."""
    site.fill(1)
    wrong = COPY | {"checkpoint": str(tmp_path / "c"), "where": "no_such_column = 1"}
    assert site.apply(copy=wrong) == 0
    one = site.run()
    until(lambda: site.status()["state"] in ("waiting", "failed"), site.said)
    assert "no_such_column" in site.status()["error"]
    # The driver says so before it ends, and the supervisor sees that it has ended.
    until(lambda: health(one)[0] == 503, site.said)
    assert health(one)[1]["troubled"] == ["copy"]
    assert health(one, "/live") == (200, {"alive": True})
    capsys.readouterr()
    assert main(["pipeline", "status", "--url", site.postgres.url]) == 1
    assert "no_such_column" in capsys.readouterr().out.replace("\n", "")
    assert main(["pipeline", "stop", "copy", "--url", site.postgres.url]) == 0
    until(lambda: site.status()["state"] == "stopped", "it stops")
    assert main(["pipeline", "stop", "nope", "--url", site.postgres.url]) == 3
    assert one.stop() == 0
