"""The results for people: a table, the ratios, what is remarkable, and the JSON with everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.summary import Ratio, ranges

Column = tuple[str, Callable[[Result], str]]


class Report(msgspec.Struct):
    machine: dict[str, str | int]
    servers: dict[str, dict[str, str]]
    options: dict[str, Any]
    results: list[Result]
    summary: list[Result]
    ratios: list[Ratio]
    ok: bool


def make(
    machine: dict[str, str | int],
    servers: dict[str, dict[str, str]],
    options: Options,
    results: list[Result],
    summary: list[Result],
    ratios: list[Ratio],
) -> Report:
    ok = bool(results) and not any(result.problems for result in results)
    return Report(machine, servers, asdict(options), results, summary, ratios, ok)


def encode(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def text(report: Report) -> str:
    parts = [facts(report), table(COLUMNS, report.summary), "CPU: seconds per 100,000 messages", *_remarks(report)]
    return "\n\n".join(part for part in parts if part)


def facts(report: Report) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in report.machine.items())]
    for server, known in report.servers.items():
        lines.append(f"{server}: " + ", ".join(f"{name} {value}" for name, value in known.items()))
    return "\n".join(lines)


def _remarks(report: Report) -> list[str]:
    extras = [_extra(result) for result in report.summary if result.extra]
    return [
        "\n".join(extras),
        "\n".join(_ranges(report.results)),
        compared(report.ratios),
        "\n".join(_failures(report.results)),
        "Every message arrived once and in order." if report.ok else "FAILED: see above.",
    ]


def _extra(result: Result) -> str:
    return f"{result.scenario} ({result.server}): " + ", ".join(
        f"{name} {_plain(value)}" for name, value in result.extra.items()
    )


def _ranges(results: Iterable[Result]) -> list[str]:
    return [
        f"range of {scenario} ({server}): "
        + ", ".join(f"{name} {_plain(least)} to {_plain(most)}" for name, (least, most) in found.items())
        for (scenario, server), found in ranges(results).items()
    ]


def _failures(results: Iterable[Result]) -> list[str]:
    return [f"FAILED {each.scenario} ({each.server}): {problem}" for each in results for problem in each.problems]


def compared(found: Sequence[Ratio]) -> str:
    if not found:
        return ""
    columns: list[tuple[str, Callable[[Ratio], str]]] = [
        ("compared", lambda each: each.scenario),
        ("this", lambda each: each.of),
        ("to", lambda each: each.to),
        ("rate", lambda each: _number(each.rate, 2)),
        ("loss", lambda each: _loss(each)),
        ("CPU", lambda each: _number(each.cpu, 2)),
        ("p50", lambda each: _number(each.p50, 2)),
    ]
    return table(columns, found)


def table(columns: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[Any]) -> str:
    """Text to the left, numbers to the right."""
    cells = [[title, *(show(row) for row in rows)] for title, show in columns]
    return "\n".join("  ".join(row).rstrip() for row in zip(*map(_aligned, cells), strict=True))


def line(result: Result) -> str:
    """One result while the run goes on."""
    shown = [f"{title} {show(result)}" for title, show in COLUMNS[2:] if show(result) != "-"]
    return (
        f"{result.scenario} ({result.server}): "
        + ", ".join(shown)
        + "".join(f"\n  FAILED: {problem}" for problem in result.problems)
    )


def _aligned(column: list[str]) -> list[str]:
    width = max(map(len, column))
    numbers = all(cell[:1].isdecimal() or cell[:1] == "-" for cell in column[1:])
    return [cell.rjust(width) if numbers else cell.ljust(width) for cell in column]


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _loss(ratio: Ratio) -> str:
    """Between scenarios of one server only: servers are compared, they lose nothing."""
    return "-" if ratio.rate is None or ratio.of_server else f"{(1 - ratio.rate) * 100:.1f} %"


def _plain(value: Extra) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float | int):
        return f"{value:,.3g}" if abs(value) < 1 else f"{value:,.1f}"
    return value


COLUMNS: Final[list[Column]] = [
    ("scenario", lambda each: each.scenario),
    ("server", lambda each: each.server),
    ("msg/s", lambda each: _number(each.rate)),
    ("p50 ms", lambda each: _number(each.main_latency().p50_ms, 1)),
    ("p99 ms", lambda each: _number(each.main_latency().p99_ms, 1)),
    ("worst age ms", lambda each: _number(each.worst_age_ms)),
    ("pending", lambda each: _number(each.pending)),
    ("ack", lambda each: each.ack_mode),
    ("CPU server", lambda each: _number(each.server_cpu_s, 2)),
    ("CPU postgres", lambda each: _number(each.postgres_cpu_s, 2)),
    ("CPU generator", lambda each: _number(each.generator_cpu_s, 2)),
    ("MB server", lambda each: _number(each.server_rss_mb)),
    ("MB postgres", lambda each: _number(each.postgres_mb)),
]
