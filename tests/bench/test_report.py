"""What the benchmark makes of its results: medians, ratios, table, JSON, plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from queen_bench import plot, report
from queen_bench.errors import BenchError
from queen_bench.options import Options
from queen_bench.result import Latency, Result
from queen_bench.scenarios.catalogue import chosen, scenarios
from queen_bench.summary import compare, ranges, summarise
from queenmq.cli.main import main


def result(scenario: str, rate: float | None, server: str = "queen", **fields: Any) -> Result:
    return Result(scenario=scenario, server=server, rate=rate, **fields)


def made(*results: Result) -> report.Report:
    summary = summarise(results)
    return report.make({"cores": 2}, {"queen": {"fsync": "on"}}, Options(), list(results), summary, compare(summary))


def test_repeats_become_their_median() -> None:
    latency = [{"push": Latency(p50, 9.0)} for p50 in (1.0, 3.0, 2.0)]
    repeats = [
        result("push-1", rate, latency=each, extra={"backlog_grows": grows}, pending=None)
        for rate, each, grows in zip((10.0, 30.0, 20.0), latency, (False, True, False), strict=True)
    ]
    [middle] = summarise(repeats)
    assert (middle.scenario, middle.server, middle.rate, middle.pending) == ("push-1", "queen", 20.0, None)
    assert middle.latency["push"] == Latency(2.0, 9.0)
    assert middle.extra == {"backlog_grows": True}


def test_repeats_are_shown_with_their_ranges() -> None:
    fields = [{"server_cpu_s": cpu, "extra": {"wal": wal, "grows": True}} for cpu, wal in ((1.0, 5), (3.0, 4))]
    repeats = [result("shape-hot", rate, **each) for rate, each in zip((20.0, 10.0), fields, strict=True)]
    assert ranges(repeats) == {("shape-hot", "queen"): {"msg/s": (10.0, 20.0), "CPU": (1.0, 3.0), "wal": (4, 5)}}
    assert "range of shape-hot (queen): msg/s 10.0 to 20.0" in report.text(made(*repeats))
    assert ranges(repeats[:1]) == {}


def test_one_bad_repeat_spoils_the_summary() -> None:
    [middle] = summarise([result("push-1", 1.0), result("push-1", 1.0, problems=["1 lost"])])
    assert middle.problems == ["1 lost"]


def test_servers_are_compared_scenario_by_scenario() -> None:
    ours = result("push-1", 30.0, server_cpu_s=1.0, postgres_cpu_s=1.0, latency={"push": Latency(2.0, 3.0)})
    theirs = result("push-1", 10.0, "other", server_cpu_s=4.0, latency={"push": Latency(4.0, 3.0)})
    [found] = compare([ours, theirs, result("push-10", 1.0, "other")])
    assert (found.scenario, found.of, found.to, found.of_server) == ("push-1", "queen", "other", True)
    assert (found.rate, found.cpu, found.p50) == (3.0, 0.5, 0.5)


def test_partitions_are_compared_with_the_fewest_and_cold_with_warm() -> None:
    found = compare(
        [
            result("push-100", 50.0),
            result("cold-100", 30.0),
            result("partitions-10-push", 100.0),
            result("partitions-1000-push", 95.0),
            result("partitions-100000-push", 90.0),
            result("partitions-10-pop-ack", 10.0),
        ]
    )
    assert [(each.of, each.to, each.rate) for each in found] == [
        ("partitions-1000-push", "partitions-10-push", 0.95),
        ("partitions-100000-push", "partitions-10-push", 0.9),
        ("cold-100", "push-100", 0.6),
    ]


def test_the_text_has_table_ratios_and_verdict() -> None:
    latency = {"pop": Latency(1.25, 10.0), "ack": Latency(5.0, 6.0)}
    extra: dict[str, Any] = {"backlog_grows": False, "push_rate": 1234.5, "share": 0.0123}
    text = report.text(
        made(
            result("partitions-10-push", 20_000.0),
            result("partitions-1000-push", 19_000.0),
            result("both-10", 12_345.6, latency=latency, extra=extra, ack_mode="ack/batch", pending=7),
        )
    )
    row = next(line for line in text.splitlines() if line.startswith("both-10 "))
    assert row.split() == ["both-10", "queen", "12,346", "1.2", "10.0", "-", "7", "ack/batch", *["-"] * 5]
    assert "both-10 (queen): backlog_grows no, push_rate 1,234.5, share 0.0123" in text
    assert "5.0 %" in text
    assert text.endswith("Every message arrived once and in order.")


def test_problems_are_told_and_fail_the_run() -> None:
    bad = made(result("push-1", 1.0, problems=["1 lost (pushed but never popped): 0:3"]))
    assert not bad.ok
    text = report.text(bad)
    assert "FAILED push-1 (queen): 1 lost (pushed but never popped): 0:3" in text
    assert "Every message arrived" not in text


def test_a_run_without_results_has_not_passed() -> None:
    assert not made().ok


def test_the_json_holds_everything() -> None:
    decoded = json.loads(report.encode(made(result("push-1", 1.0, latency={"push": Latency(1.0, 2.0)}))))
    assert set(decoded) == {"machine", "servers", "options", "results", "summary", "ratios", "ok"}
    assert decoded["options"]["connections"] == 64
    assert decoded["results"][0]["latency"] == {"push": {"p50_ms": 1.0, "p99_ms": 2.0}}


def test_without_matplotlib_the_plot_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BenchError, match="pip install"):
        plot.write(tmp_path / "plot.png", [])


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    plot.write(path, [result("push-1", 1.0, server_cpu_s=1.0), result("push-1", 2.0, "other"), result("wakeup", None)])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_scenarios_are_chosen_by_pattern_in_their_own_order() -> None:
    known = scenarios(Options())
    assert [each.name for each in chosen(known, ["wakeup", "push-1*"])] == ["push-1", "push-10", "push-100", "wakeup"]
    assert chosen(known, []) == known
    assert len({each.name for each in known}) == len(known)
    with pytest.raises(BenchError, match="no scenario 'pull-1'"):
        chosen(known, ["push-1", "pull-1"])


def test_the_command_lists_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--only", "partitions-*", "--partition-counts", "7,70"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [f"partitions-{count}-{verb}" for verb in ("push", "pop-ack") for count in (7, 70)]


@pytest.mark.parametrize(
    "arguments", [["--only", "nothing"], ["--url", "ftp://x"], ["--against", "http://h,postgres=x"]]
)
def test_the_command_refuses_with_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 1
    assert capsys.readouterr().err.startswith("queen bench: ")


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--connections", "x"], ["--peers", "kafka"]])
def test_the_command_refuses_unusable_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
