"""The Grafana dashboard and the alert rules speak of what a server really tells Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import promql_parser
import pytest
import yaml
from server_settings import settings_with

from integration.queen import Queen, parked
from integration.test_metrics import SAMPLE, a_minute_of_work, scrape
from integration.test_pipelines import DECLARE
from queenmq.config import Settings
from queenmq.server import Server

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "queen.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
OF_PROMETHEUS = {"job", "instance"}
DURATION = "5m"

Series = dict[str, list[dict[str, str]]]


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked = [re.sub(r"^label_values\((.*), \w+\)$", r"\1", v["definition"]) for v in variables() if "definition" in v]
    return [text.replace("$__rate_interval", DURATION) for text in shown + asked] + [rule["expr"] for rule in RULES]


def variables() -> list[dict[str, Any]]:
    return DASHBOARD["templating"]["list"]


def nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        below = getattr(expression, name, None)
        if below is not None:
            yield from nodes(below)
    for argument in getattr(expression, "args", None) or ():
        yield from nodes(argument)


def faults(text: str, series: Series) -> list[str]:
    """What an expression names that is not there."""
    found: list[str] = []
    grouped: set[str] = set()
    known: set[str] = set(OF_PROMETHEUS)
    for node in nodes(promql_parser.parse(text)):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped |= set(node.modifier.labels)
        if not isinstance(node, promql_parser.VectorSelector):
            continue
        if node.name == "up":
            continue
        samples = series.get(node.name or "", [])
        if not samples:
            found.append(f"there is no {node.name}")
        known |= {label for sample in samples for label in sample}
        for matcher in node.matchers.matchers:
            values = {sample[matcher.name] for sample in samples if matcher.name in sample}
            if matcher.name in OF_PROMETHEUS:
                continue
            if not values:
                found.append(f"{node.name} has no label {matcher.name}")
            elif not matcher.value.startswith("$") and matcher.value not in values:
                found.append(f"{node.name} has no {matcher.name}={matcher.value!r}")
    return found + [f"nothing has the label {label}" for label in grouped - known]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(journal={"folder": tmp_path})


@pytest.fixture
async def series(queen: Queen, server: Server, sql: asyncpg.Connection) -> Series:
    """The labels of every sample of a server that has worked, by name."""
    await a_minute_of_work(queen, server, sql)
    await sql.execute(DECLARE)
    poll = asyncio.create_task(queen.wait("orders", timeout=30_000))
    await parked(server)
    samples, _ = await scrape(queen)
    await queen.push("orders", 4)
    await poll
    found: Series = {}
    for name in samples:
        match = SAMPLE.fullmatch(f"{name} 0")
        assert match is not None
        labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match["labels"] or ""))
        found.setdefault(match["name"], []).append(labels)
    return found


async def test_everything_that_is_named_is_there(series: Series) -> None:
    wrong = {text: found for text in expressions() if (found := faults(text, series))}
    assert wrong == {}


async def test_the_check_would_notice(series: Series) -> None:
    assert faults("queen_gone > 0", series) == ["there is no queen_gone"]
    assert faults('queen_operations{state="lost"}', series) == ["queen_operations has no state='lost'"]
    assert faults('queen_operations{color="red"}', series) == ["queen_operations has no label color"]
    assert faults("sum by (color) (rate(queen_operations[5m]))", series) == ["nothing has the label color"]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 10
    known = set(re.findall(r"\| `([A-Z_]+)` \|", (DEPLOY.parent / "docs" / "configuration.md").read_text()))
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert summary and description.endswith("."), rule["alert"]
        assert set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", description)) <= known, rule["alert"]
        labels = set(re.findall(r"\$labels\.(\w+)", summary + description))
        by = re.search(r"by \(([^)]*)\)", rule["expr"])
        assert labels <= (set(by[1].split(", ")) if by else OF_PROMETHEUS), rule["alert"]


def test_the_dashboard_is_whole() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]}
    assert len(places) == len(DASHBOARD["panels"])
    names = {variable["name"] for variable in variables()}
    for panel in panels():
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
        used = set(re.findall(r"\$(\w+)", json.dumps(panel["targets"]))) - {"__rate_interval"}
        assert used <= names, panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees() -> None:
    for command in (["check", "rules", str(ALERTS)], ["check", "config", str(PROMETHEUS)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
