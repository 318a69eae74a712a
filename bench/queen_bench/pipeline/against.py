"""`queen pipeline bench` in this environment and in another one, such as that of an older checkout, in turn.

Each turn is a bench with a fresh server and its bundled PostgreSQL, both of the same version, as a user of that version
has them. The environments change places from turn to turn, and the medians are compared, so that a machine that gets
slower meanwhile favours neither.

python -m queen_bench.pipeline.against OTHER/.venv/bin/python --turns 3 -- --messages 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queen_bench.errors import BenchError
from queen_bench.server import LISTENS, NOT_PASSED_ON, QUEEN, START_S, STOP_S, at_our_death

HERE: Final = "here"
OTHER: Final = "there"
# What would send one environment's processes into the other one.
_OF_THIS_ENVIRONMENT: Final = ("PYTHONPATH", "PYTHONHOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV")
_FIGURES: Final = re.compile(r"^([\d,]+) rows/s, CPU ([\d.]+) s \+ PostgreSQL ([\d.]+) s")
_SHOWN: Final = 500


@dataclass(frozen=True)
class Figures:
    rate: float
    cpu_s: float
    postgres_s: float

    @property
    def all_s(self) -> float:
        return self.cpu_s + self.postgres_s


def measured(python: str, options: Sequence[str]) -> dict[str, Figures]:
    """One bench with a server of its own, by the environment of this Python. Raises BenchError if it fails."""
    with tempfile.TemporaryDirectory(prefix="queen-against-") as folder, _server(python, Path(folder)) as postgres:
        command = [python, "-c", QUEEN, "pipeline", "bench", "--json", "--data-dir", f"{folder}/data"]
        done = subprocess.run(  # noqa: S603 - the caller names the environment
            [*at_our_death(), *command, "--postgres", str(postgres), *options],
            env=_environment(), cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BenchError(f"the bench of {python} ended with status {done.returncode}: {done.stderr[-_SHOWN:]}")
    found = {name: _FIGURES.match(str(text)) for name, text in json.loads(done.stdout)["summary"].items()}
    return {
        name: Figures(float(one[1].replace(",", "")), float(one[2]), float(one[3]))
        for name, one in found.items()
        if one
    }


@contextmanager
def _server(python: str, folder: Path) -> Iterator[int]:
    """A server of that environment on a new database. Gives the process id of its PostgreSQL."""
    command = [python, "-c", QUEEN, "serve", "--host", "127.0.0.1", "--port", "0", "--data-dir", f"{folder}/data"]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the caller names the environment
            [*at_our_death(), *command, "--log-level", "warning"],
            env=_environment(), cwd=folder, stdout=subprocess.PIPE, stderr=output, start_new_session=True,
        )  # fmt: skip
    deadline = threading.Timer(START_S, process.terminate)
    deadline.start()
    try:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        if not any(LISTENS in line.decode() for line in process.stdout):
            told = log.read_text(errors="replace")[-_SHOWN:]
            raise BenchError(f"the server of {python} did not start: {told}")
        deadline.cancel()
        yield _postmaster(folder / "data")
    finally:
        deadline.cancel()
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _postmaster(data: Path) -> int:
    for found in data.rglob("postmaster.pid"):
        return int(found.read_text().split("\n", 1)[0])
    raise BenchError(f"there is no PostgreSQL in {data}")


def _environment() -> dict[str, str]:
    left_out = {*NOT_PASSED_ON, *_OF_THIS_ENVIRONMENT}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def turns(pythons: dict[str, str], count: int, options: Sequence[str]) -> dict[str, list[dict[str, Figures]]]:
    """The figures of every turn of each environment. Each begins every other turn."""
    found: dict[str, list[dict[str, Figures]]] = {name: [] for name in pythons}
    for turn in range(count):
        for name in list(pythons)[:: -1 if turn % 2 else 1]:
            found[name].append(measured(pythons[name], options))
            print(f"turn {turn + 1} of {count}: {name} is done", file=sys.stderr, flush=True)
    return found


def medians(found: list[dict[str, Figures]]) -> dict[str, Figures]:
    """Of what every turn has measured."""
    common = [name for name in found[0] if all(name in one for one in found)]
    return {
        name: Figures(
            *(statistics.median(values) for values in zip(*map(_values, (one[name] for one in found)), strict=True))
        )
        for name in common
    }


def _values(one: Figures) -> tuple[float, float, float]:
    return one.rate, one.cpu_s, one.postgres_s


def table(here: dict[str, Figures], there: dict[str, Figures]) -> str:
    """Markdown: rates and CPU of both, and how many times as much this environment has, of what both have measured."""
    lines = [
        "| what | rows/s here | rows/s there | here / there | CPU s here | CPU s there | here / there |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in here.items():
        if name in there:
            other = there[name]
            rate, cpu = one.rate / max(1.0, other.rate), one.all_s / max(0.05, other.all_s)
            lines.append(
                f"| {name} | {one.rate:,.0f} | {other.rate:,.0f} | {rate:.2f} | {one.cpu_s:.1f} + {one.postgres_s:.1f} "
                f"| {other.cpu_s:.1f} + {other.postgres_s:.1f} | {cpu:.2f} |"
            )
    return "\n".join([*lines, "", "CPU is that of Spark with its workers + that of PostgreSQL; medians of the turns."])


def main(arguments: Sequence[str]) -> int:
    given, options = list(arguments), []
    if "--" in given:
        place = given.index("--")
        given, options = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(prog="queen_bench.pipeline.against", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("python", help="the Python of the other environment")
    parser.add_argument("--turns", type=int, default=3, help="how often each of the two is measured (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures of every turn to this file")
    chosen = parser.parse_args(given)
    if chosen.turns < 1:
        parser.error("--turns must be at least 1")
    try:
        # Not resolved: a link is how an environment names its Python.
        pythons = {HERE: sys.executable, OTHER: str(Path(chosen.python).absolute())}
        found = turns(pythons, chosen.turns, options)
    except (BenchError, OSError) as error:
        print(f"against: {error}", file=sys.stderr)
        return 1
    if chosen.json:
        plain = {
            name: [{what: vars(one) for what, one in turn.items()} for turn in all_] for name, all_ in found.items()
        }
        Path(chosen.json).write_text(json.dumps(plain, indent=1))
    print(f"queen pipeline bench {shlex.join(options)}".rstrip())
    print(table(medians(found[HERE]), medians(found[OTHER])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
