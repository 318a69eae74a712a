"""The list of all scenarios, and how they are chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from queen_bench.errors import BenchError
from queen_bench.options import Options
from queen_bench.scenarios.age import Age
from queen_bench.scenarios.both import Both
from queen_bench.scenarios.cluster import ClusterCalls, ClusterWakeup
from queen_bench.scenarios.controls import Controls, ControlsOfPops, FairShare
from queen_bench.scenarios.coordinator import Coordinated
from queen_bench.scenarios.held_beside import HeldBeside
from queen_bench.scenarios.held_horizon import HeldHorizon
from queen_bench.scenarios.load_check import LoadCheck
from queen_bench.scenarios.open_transaction import OpenTransaction
from queen_bench.scenarios.parked import Parked
from queen_bench.scenarios.pop import Pop
from queen_bench.scenarios.push import Push
from queen_bench.scenarios.scenario import Scenario
from queen_bench.scenarios.shape import SHAPES
from queen_bench.scenarios.sizes import SizesOverTime
from queen_bench.scenarios.timers import Timers
from queen_bench.scenarios.tls import TlsCost
from queen_bench.scenarios.wakeup import HalfLoad, Wakeup

BATCHES: Final = (1, 10, 100)
PARTITION_BATCH: Final = 10


def scenarios(options: Options) -> list[Scenario]:
    counts = options.partition_counts
    groups = options.groups
    return [
        *(Push(f"push-{batch}", batch) for batch in BATCHES),
        *(Push(f"spread-{batch}", batch, spread=True) for batch in BATCHES if batch > 1),
        *(Push(f"cold-{batch}", batch, cold=True) for batch in BATCHES),
        *(Pop(f"pop-ack-{batch}", batch) for batch in BATCHES),
        *(Pop(f"pop-auto-{batch}", batch, auto_ack=True) for batch in BATCHES),
        *(Pop(f"pop-take-{batch}", batch, take=True) for batch in BATCHES),
        *(Pop(f"pop-connected-{batch}", batch, connected=True) for batch in BATCHES),
        *(Push(f"push-client-{batch}", batch, client=True) for batch in BATCHES),
        *(Pop(f"pop-client-{batch}", batch, client=True) for batch in BATCHES),
        Both("both-10", 10),
        Both("both-10-paced", 10, paced=True),
        Both("both-100", 100),
        Both("both-100-connected", 100, connected=True),
        *SHAPES,
        Controls("controls"),
        ControlsOfPops("controls-pop"),
        FairShare("fair-share"),
        Push("groups-push-10", 10, groups=groups),
        Pop("groups-pop-ack-10", 10, groups=groups),
        *(Push(f"partitions-{count}-push", PARTITION_BATCH, partitions=count) for count in counts),
        *(_pop_partitions(count, min(counts)) for count in counts),
        Wakeup("wakeup"),
        Wakeup("wakeup-connected", connected=True),
        HalfLoad("wakeup-half-load"),
        HalfLoad("wakeup-half-load-connected", connected=True),
        ClusterWakeup("cluster-wakeup"),
        ClusterCalls("cluster-calls"),
        Coordinated("coordinator"),
        LoadCheck("load-check"),
        TlsCost("tls"),
        OpenTransaction("open-transaction"),
        HeldHorizon("held-horizon"),
        HeldBeside("held-beside"),
        SizesOverTime("sizes"),
        Parked("parked"),
        Parked("parked-partitions", own_partition=True),
        Timers("timers"),
        Age("age"),
    ]


def _pop_partitions(count: int, fewest: int) -> Scenario:
    """With no more consumers than the fewest partitions: more would wait for leases there, and spoil the base."""
    return Pop(f"partitions-{count}-pop-ack", PARTITION_BATCH, partitions=count, most_consumers=fewest)


def chosen(known: Sequence[Scenario], patterns: Sequence[str]) -> list[Scenario]:
    """Those whose name matches one of the patterns, in the order of the list; all without a pattern."""
    for pattern in patterns:
        if not any(fnmatchcase(scenario.name, pattern) for scenario in known):
            raise BenchError(f"there is no scenario {pattern!r}; --list shows all")
    return [each for each in known if not patterns or any(fnmatchcase(each.name, pattern) for pattern in patterns)]
