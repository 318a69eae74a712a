"""The comparison of `queen pipeline bench` in two environments: turns, medians, ratios, and what fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from queen_bench.pipeline import against

# Stands for the Python of an environment: `serve` tells where it listens and waits for the signal to stop, `bench`
# prints the next rates of a list.
PYTHON = sys.executable
STAND_IN = """#!{python}
import json, os, signal, sys
from pathlib import Path
name, data, words = {name!r}, Path(sys.argv[sys.argv.index("--data-dir") + 1]), sys.argv[3:]
def note(text):
    with open({log!r}, "a") as log:
        log.write(name + " " + text + "\\n")
assert "PYSPARK_PYTHON" not in os.environ
if words[0] == "serve":
    if {broken}:
        sys.exit("no space left")
    (data / "postgres").mkdir(parents=True)
    (data / "postgres" / "postmaster.pid").write_text("4711\\n/data\\n")
    note("serve")
    signal.signal(signal.SIGTERM, lambda *_: (note("stop"), sys.exit(0)))
    print("Queen listens on http://127.0.0.1:6632", flush=True)
    while True:
        signal.pause()
assert words[:2] == ["pipeline", "bench"] and words[words.index("--postgres") + 1] == "4711"
note("bench " + " ".join(words[words.index("4711") + 1 :]))
turn = Path({log!r}).read_text().count(name + " bench") - 1
rate, cpu = {figures}[turn]
summary = {{"read": f"{{rate:,.0f}} rows/s, CPU {{cpu:.1f}} s + PostgreSQL 1.0 s"}}
summary["window, push to result"] = "p50 1 ms"
summary["of " + name] = summary["read"]
print(json.dumps({{"job": "bench", "summary": summary}}))
"""


def stand_in(folder: Path, name: str, *figures: tuple[int, float], broken: bool = False) -> str:
    made = folder / name
    log = str(folder / "log")
    made.write_text(STAND_IN.format(python=PYTHON, name=name, log=log, figures=list(figures), broken=broken))
    made.chmod(0o755)
    return str(made)


def test_two_environments_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "new", (3000, 1.0), (9000, 9.0), (2000, 2.0)))
    other = stand_in(tmp_path, "old", (1000, 4.0), (1500, 5.0), (100, 6.0))
    saved = tmp_path / "saved.json"
    assert against.main([other, "--turns", "3", "--json", str(saved), "--", "--messages", "20"]) == 0
    turns = [f"{name} {what}" for name in ("new", "old", "old", "new", "new", "old")
             for what in ("serve", "bench --messages 20", "stop")]  # fmt: skip
    assert (tmp_path / "log").read_text().splitlines() == turns
    printed = capsys.readouterr().out
    assert "queen pipeline bench --messages 20" in printed
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert rows[1:] == ["| read | 3,000 | 1,000 | 3.00 | 2.0 + 1.0 | 5.0 + 1.0 | 0.50 |"]
    found = json.loads(saved.read_text())
    assert [turn["read"]["rate"] for turn in found["there"]] == [1000, 1500, 100]


@pytest.mark.parametrize(("broken", "told"), [(True, "no space left"), (False, "list index out of range")])
def test_what_fails_is_told_and_nothing_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: bool,
    told: str,
) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "new", (1, 1.0)))
    assert against.main([stand_in(tmp_path, "old", broken=broken), "--turns", "1"]) == 1
    assert told in capsys.readouterr().err
    assert (tmp_path / "log").read_text().count("serve") == (tmp_path / "log").read_text().count("stop")
