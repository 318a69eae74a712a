"""The results as a picture: messages a second and CPU per message, a bar for each server. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from queen_bench.errors import BenchError
from queen_bench.result import Result, Series

BAR: Final = 0.8
INCHES_PER_SCENARIO: Final = 0.45
LINES: Final = 8
PARTS: Final = (("server", "server_cpu_s"), ("PostgreSQL", "postgres_cpu_s"), ("generator", "generator_cpu_s"))


def write(path: Path, summary: Sequence[Result]) -> None:
    """Raises BenchError with what to do when there is no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise BenchError("no plot without matplotlib: pip install 'queenmq[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [result for result in summary if result.rate is not None]
    figure, (rates, cpu) = pyplot.subplots(1, 2, sharey=True, figsize=(14, 2 + INCHES_PER_SCENARIO * len(measured)))
    _rates(rates, measured)
    _cpu(cpu, measured)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_series(path: Path, title: str, series: Series) -> None:
    """The largest ones as lines over time. Raises BenchError as `write`."""
    try:
        import matplotlib
    except ImportError:
        raise BenchError("no plot without matplotlib: pip install 'queenmq[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    largest = sorted(series, key=lambda name: max(value for _, value in series[name]), reverse=True)[:LINES]
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for name in largest:
        axes.plot([at / 60 for at, _ in series[name]], [value for _, value in series[name]], label=name, linewidth=1)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("minutes")
    axes.set_ylabel("MB")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _rates(axes: Any, measured: Sequence[Result]) -> None:
    scenarios = list(dict.fromkeys(result.scenario for result in measured))
    for server, places, values in _bars(measured, scenarios, "rate"):
        bars = axes.barh(places, values, BAR / _count(measured), label=server)
        axes.bar_label(bars, labels=[f"{value:,.0f}" for value in values], padding=2, fontsize=7)
    axes.set_yticks(range(len(scenarios)), scenarios)
    axes.invert_yaxis()
    axes.set_xlabel("messages/s")
    axes.margins(x=0.12)
    axes.legend(fontsize=8)


def _cpu(axes: Any, measured: Sequence[Result]) -> None:
    scenarios = list(dict.fromkeys(result.scenario for result in measured))
    starts: dict[str, list[float]] = {}
    for part, (label, field) in enumerate(PARTS):
        for number, (server, places, values) in enumerate(_bars(measured, scenarios, field)):
            left = starts.setdefault(server, [0.0] * len(values))
            axes.barh(
                places, values, BAR / _count(measured), left, color=f"C{part}", label=label if not number else None
            )
            starts[server] = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel("CPU seconds per 100,000 messages")
    axes.legend(fontsize=8)


def _bars(measured: Sequence[Result], scenarios: list[str], field: str) -> list[tuple[str, list[float], list[float]]]:
    """For each server the places of its bars and their lengths."""
    bars = []
    for number, server in enumerate(_servers(measured)):
        own = [result for result in measured if result.server == server]
        shift = (number + 0.5) * BAR / _count(measured) - BAR / 2
        places = [scenarios.index(result.scenario) + shift for result in own]
        bars.append((server, places, [getattr(result, field) or 0.0 for result in own]))
    return bars


def _servers(measured: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.server for result in measured))


def _count(measured: Sequence[Result]) -> int:
    return len(_servers(measured))
