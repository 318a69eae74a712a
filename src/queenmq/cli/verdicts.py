"""What `queen verify` prints of verdicts. The checker is loaded when it is needed: help must not wait for it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queenmq.cli import exits
from queenmq.cli.show import Column, print_json, table

if TYPE_CHECKING:
    from queenmq.verify import History, Verdict
    from queenmq.verify.history import Fault

_SHOWN = 5


def report(results: Sequence[tuple[str, Verdict, History]], as_json: bool) -> int:
    from queenmq.verify import lines
    from queenmq.verify.shrink import minimal

    if as_json:
        print_json([_as_json(*result) for result in results])
    else:
        rows = [
            {
                "workload": name,
                "operations": verdict.operations,
                "checks": sum(verdict.checked.values()),
                "failed": verdict.outcomes.get("fail", 0),
                "unknown": verdict.outcomes.get("info", 0),
                "faults": len(_faults_of(history)),
                "violations": len(verdict.violations),
                "not judged": len(verdict.unjudged),
            }
            for name, verdict, history in results
        ]
        names = ("operations", "checks", "failed", "unknown", "faults", "violations", "not judged")
        table(rows, Column("workload"), *(Column(name, number=True) for name in names))
        counts = Counter(fault.name for _, _, history in results for fault in _faults_of(history))
        if counts:
            print("faults: " + ", ".join(f"{count} × {name}" for name, count in counts.most_common()))
        for name, verdict, history in results:
            for violation in verdict.violations[:_SHOWN]:
                print(f"\n{name} breaks {violation.rule}: {violation.text}")
                for line in lines(minimal(history, violation)):
                    print(f"    {line}")
            if len(verdict.violations) > _SHOWN:
                print(f"\n{name}: {len(verdict.violations) - _SHOWN} more; --json has all of them")
            for text in verdict.unjudged:
                print(f"\n{name} could not be judged: {text}")
    broken = [name for name, verdict, _ in results if not verdict.is_valid]
    unjudged = [name for name, verdict, _ in results if verdict.unjudged]
    if broken:
        print(f"promises were broken: {', '.join(broken)}", file=sys.stderr)
    if unjudged:
        print(f"could not be judged: {', '.join(unjudged)}", file=sys.stderr)
    if broken or unjudged:
        return exits.FAILED
    if not as_json:
        print("every promise was kept")
    return exits.OK


def _faults_of(history: History) -> list[Fault]:
    from queenmq.verify.history import Fault

    return [event for event in history if isinstance(event, Fault)]


def _as_json(name: str, verdict: Verdict, history: History) -> dict[str, Any]:
    """With the smallest history that shows it, of the first violations."""
    import msgspec

    from queenmq.verify.shrink import minimal

    return {
        "name": name,
        "valid": verdict.is_valid,
        "operations": verdict.operations,
        "outcomes": verdict.outcomes,
        "checked": verdict.checked,
        "faults": [msgspec.to_builtins(fault) for fault in _faults_of(history)],
        "unjudged": verdict.unjudged,
        "violations": [
            {
                "rule": one.rule,
                "text": one.text,
                "operations": list(one.ops),
                "history": msgspec.to_builtins(minimal(history, one)) if number < _SHOWN else [],
            }
            for number, one in enumerate(verdict.violations)
        ],
    }
