"""Thousands of small histories of a cluster, each from one seed.

A seed that fails is named with the command that runs it alone. `QUEEN_LONG=1` runs many more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest

from queenmq.broker.caches import OptionCache, _KnownOptions
from queenmq.cluster.greetings import Greetings
from queenmq.cluster.lease_hints import LeaseHints
from queenmq.cluster.membership import Membership
from queenmq.cluster.outbox import Outbox
from queenmq.cluster.presence import Presence
from queenmq.cluster.replay import ReplayGuard, _Life
from simulation import invariants
from simulation.actions import live
from simulation.world import World

CHOSEN = os.environ.get("QUEEN_SIMULATION_SEED")
SEEDS = 20_000 if os.environ.get("QUEEN_LONG") else 400
# Tests of their own, so that several processes share them.
PARTS = 8


def history(seed: int) -> int:
    """Run one history; returns its fingerprint."""
    world = World(seed)
    try:
        live(world, world.chance.uniform(5, 12))
        world.settle()
        invariants.settled(world)
    except Exception as failure:
        failure.add_note(f"at {world.now:.3f} s; to run it again: QUEEN_SIMULATION_SEED={seed} pytest tests/simulation")
        raise
    return world.trace


def seeds(part: int) -> Iterable[int]:
    """Half of them the same in every run, half of them new."""
    if CHOSEN is not None:
        return [int(CHOSEN)] if part == 0 else []
    same = range(part, SEEDS // 2, PARTS)
    return [*same, *(random.randrange(SEEDS, 2**31) for _ in same)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_ends_well(part: int) -> None:
    for seed in seeds(part):
        history(seed)


def test_a_seed_is_a_history() -> None:
    assert [history(seed) for seed in range(5)] == [history(seed) for seed in range(5)]
    assert len({history(seed) for seed in range(5)}) == 5


def _any_other_epoch_is_a_restart(guard: ReplayGuard, sender: str, epoch: int, sequence: int, now: float) -> Any:
    life = guard._lives.get(sender)
    if life is None or epoch != life.epoch:
        guard._lives[sender] = _Life(epoch, sequence, now)
        return None
    return life.admit(sequence, now, 1024, 10)


def _last_come_wins(configs: OptionCache, queue: str, options: Any, version: int, now: float) -> bool:
    configs._known[queue] = _KnownOptions(options, version, now)
    return True


def _no_tombstone(configs: OptionCache, queue: str, version: int, now: float) -> bool:
    return configs._known.pop(queue, None) is not None


def _only_registered(presence: Presence, server: str, stamp: Any, low: int, high: int, queues: Any, now: float) -> None:
    presence.registered(server, stamp, queues, now)


def _strangers(members: Membership, now: float) -> tuple[Any, ...]:
    """Greetings to peers that were configured only until they were known."""
    taken = {member.address for member in members.members()}
    return tuple(address for address in members._peers if address not in taken)


def _met_by_anything(greetings: Greetings, challenge: bytes, now: float) -> Any:
    return next((sent.address for sent in greetings._sent.values()), None)


def _configured_is_better(members: Membership, member: Any, address: Any, confirmed: bool) -> bool:
    return address in members._peers and member.address not in members._peers


def _nothing(*_: Any, **__: Any) -> None:
    return None


FAULTS: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "a former life is believed": (ReplayGuard, "admit", _any_other_epoch_is_a_restart, "acted on"),
    "recorded answers are believed": (Greetings, "met", _met_by_anything, "acted on|alive are|sees|is not told"),
    "a server is moved to an address that is not its own": (
        Membership,
        "_is_better",
        _configured_is_better,
        "writes to",
    ),
    "a packet is believed twice": (_Life, "admit", _nothing, "acted on"),
    "epochs of the database are ignored": (ReplayGuard, "know_epochs", _nothing, "acted on|knows"),
    "the dead leave presence": (Presence, "forget_server", _nothing, "keeps the consumers"),
    "the dead leave hints": (LeaseHints, "forget_server", _nothing, "keeps hints"),
    "nobody dies": (Membership, "check", lambda *_: [], "thinks that|alive are"),
    "the broken network is forgotten": (Membership, "to_greet", _strangers, "alive are"),
    "snapshots correct nothing": (Presence, "snapshot", _only_registered, "sees"),
    "no snapshots are sent": (Outbox, "send_presence", lambda *_: [], "sees"),
    "an older configuration wins": (OptionCache, "receive", _last_come_wins, "went back"),
    "a deletion is not remembered": (OptionCache, "deleted", _no_tombstone, "went back"),
    "a refresh changes nothing": (OptionCache, "replace_all", lambda *_: [], "there are|old version|went back"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_histories_would_notice(fault: str) -> None:
    """Each fault, put in on purpose, makes some history fail, and for the right reason."""
    owner, method, broken, complaint = FAULTS[fault]
    with patch.object(owner, method, broken), pytest.raises(AssertionError, match=complaint) as noticed:
        for seed in range(400):
            history(seed)
    assert "QUEEN_SIMULATION_SEED=" in noticed.value.__notes__[0]
