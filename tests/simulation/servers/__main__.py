"""Plays many histories and says which of them break a promise: `python -m simulation.servers --seeds 1000`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from queenmq.clock import process_cpu_s
from simulation.servers.world import PLAYED, play


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workload", choices=PLAYED, help="only this one; by the seed if it is not given")
    parser.add_argument("--verbose", action="store_true", help="print a line for each history")
    options = parser.parse_args()
    bad, operations, checked, seconds = [], 0, 0, 0.0
    events: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        try:
            outcome = play(seed, options.workload)
        except Exception as error:
            bad.append(seed)
            say(f"seed {seed} failed: {error!r}")
            continue
        operations += outcome.verdict.operations
        checked += sum(outcome.verdict.checked.values())
        seconds += outcome.seconds
        events += outcome.events
        if options.verbose:
            say(f"seed {seed} {outcome.workload}: {outcome.verdict.operations} operations, {outcome.trace[:16]}")
        if not outcome.is_good:
            bad.append(seed)
            say(outcome.described())
    say(
        f"{options.seeds} histories, {operations} operations, {checked} checks, {seconds:.0f} s of virtual time,"
        f" {process_cpu_s():.0f} s of CPU"
    )
    say(", ".join(f"{count} {what}" for what, count in sorted(events.items()) if what != "done"))
    if bad:
        say(f"{len(bad)} broke a promise or failed: {' '.join(map(str, bad))}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
