"""Results of several repeats as one, and what servers, partitions and cold queues are in relation to each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from queen_bench.figures import median, ratio
from queen_bench.result import Latency, Result

PARTITIONS: Final = re.compile(r"partitions-(\d+)-(.+)")


class Ratio(msgspec.Struct):
    """One result in relation to another: rates, CPU of server and PostgreSQL per message, median latencies."""

    scenario: str
    of_server: bool
    of: str
    to: str
    rate: float | None
    cpu: float | None
    p50: float | None


def summarise(results: Iterable[Result]) -> list[Result]:
    """One result for each scenario and server, with the median of its repeats."""
    kinds: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        kinds.setdefault((result.scenario, result.server), []).append(result)
    return [_middle(repeats) for repeats in kinds.values()]


def ranges(results: Iterable[Result]) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """The least and the greatest value of each figure, for each scenario and server that was repeated."""
    kinds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for result in results:
        latency = result.main_latency()
        named = {
            "msg/s": result.rate,
            "CPU": _cpu(result),
            "p50 ms": latency.p50_ms,
            "p99 ms": latency.p99_ms,
            "worst age ms": result.worst_age_ms,
            "pending": result.pending,
            **result.extra,
        }
        numbers = {n: v for n, v in named.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        kinds.setdefault((result.scenario, result.server), []).append(numbers)
    return {
        kind: {
            name: (min(each[name] for each in repeats), max(each[name] for each in repeats))
            for name in repeats[0]
            if all(name in each for each in repeats)
        }
        for kind, repeats in kinds.items()
        if len(repeats) > 1
    }


def _middle(repeats: list[Result]) -> Result:
    fields: dict[str, Any] = {
        name: _value([getattr(each, name) for each in repeats]) for name in Result.__struct_fields__
    }
    fields["latency"] = {verb: _latency(repeats, verb) for verb in repeats[0].latency}
    fields["extra"] = {name: _value([each.extra.get(name) for each in repeats]) for name in repeats[0].extra}
    fields["problems"] = [problem for each in repeats for problem in each.problems]
    fields["repeat"] = len(repeats)
    return Result(**fields)


def _latency(repeats: list[Result], verb: str) -> Latency:
    found = [each.latency[verb] for each in repeats if verb in each.latency]
    return Latency(_value([each.p50_ms for each in found]), _value([each.p99_ms for each in found]))


def _value(values: Sequence[Any]) -> Any:
    """The median of numbers, the worst of flags, the first of anything else."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return any(known)
    if known and all(isinstance(value, int | float) for value in known):
        return median(known)
    return known[0] if known else None


def compare(summary: Sequence[Result]) -> list[Ratio]:
    ours = summary[0].server if summary else ""
    own = [result for result in summary if result.server == ours]
    return [*_servers(summary, own), *_partitions(own), *_cold(own)]


def _servers(summary: Sequence[Result], own: Sequence[Result]) -> list[Ratio]:
    """Ours to every other server, scenario by scenario."""
    ours = {result.scenario: result for result in own}
    others = [result for result in summary if result not in own and result.scenario in ours]
    return [_ratio(ours[theirs.scenario], theirs, theirs.scenario, of_server=True) for theirs in others]


def _partitions(own: Sequence[Result]) -> list[Ratio]:
    """Many partitions to the fewest."""
    counts: dict[str, dict[int, Result]] = {}
    for result in own:
        if found := PARTITIONS.fullmatch(result.scenario):
            counts.setdefault(found[2], {})[int(found[1])] = result
    return [
        _ratio(by_count[count], by_count[min(by_count)], f"partitions {verb}")
        for verb, by_count in counts.items()
        for count in sorted(by_count)[1:]
    ]


def _cold(own: Sequence[Result]) -> list[Ratio]:
    """Partitions that had to be made to partitions that existed."""
    named = {result.scenario: result for result in own}
    pairs = [(name, name.replace("cold-", "push-")) for name in named if name.startswith("cold-")]
    return [_ratio(named[cold], named[warm], "cold") for cold, warm in pairs if warm in named]


def _ratio(result: Result, base: Result, what: str, *, of_server: bool = False) -> Ratio:
    return Ratio(
        scenario=what,
        of_server=of_server,
        of=result.server if of_server else result.scenario,
        to=base.server if of_server else base.scenario,
        rate=ratio(result.rate, base.rate),
        cpu=ratio(_cpu(result), _cpu(base)),
        p50=ratio(result.main_latency().p50_ms, base.main_latency().p50_ms),
    )


def _cpu(result: Result) -> float | None:
    """Of everything but the load generator."""
    parts = [part for part in (result.server_cpu_s, result.postgres_cpu_s) if part is not None]
    return sum(parts) if parts else None
