"""Histories of whole servers in virtual time, each from one seed, judged by the checker; and twins that must be found.

A seed that fails is named with the command that runs it alone. `QUEEN_LONG=1` runs many more.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from integration.test_twins_of_code import (
    ack_that_takes_refusals_for_success,
    journal_without_fsync,
    operations_in_the_wrong_order,
    push_that_overtakes_the_journal,
    replay_that_forgets,
    replay_that_reorders,
    wake_up_that_wakes_nobody,
)

from queenmq.broker import long_polls
from queenmq.broker.ack import AckRequest
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.merging import Waiting
from queenmq.core.push_call import Outcome as Pushed
from queenmq.errors import ServerStopping
from queenmq.httpserver.refusals import error_response
from simulation.servers import network
from simulation.servers.world import Outcome, play

Patch = pytest.MonkeyPatch
CHOSEN = os.environ.get("QUEEN_SIMULATION_SEED")
SEEDS = 1000 if os.environ.get("QUEEN_LONG") else 20
# Tests of their own, so that several processes share them.
PARTS = 4
TRIES = 60


def judged(seed: int) -> Outcome:
    try:
        outcome = play(seed)
    except Exception as failure:
        failure.add_note(_again(seed))
        raise
    assert outcome.is_good, f"{outcome.described()}\n{_again(seed)}"
    return outcome


def _again(seed: int) -> str:
    return f"to run it again: QUEEN_SIMULATION_SEED={seed} pytest {__file__}"


def seeds(part: int) -> Iterable[int]:
    """Half of them the same in every run, half of them new."""
    if CHOSEN is not None:
        return [int(CHOSEN)] if part == 0 else []
    same = range(part, SEEDS // 2, PARTS)
    return [*same, *(random.randrange(SEEDS, 2**31) for _ in same)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_keeps_the_promises(part: int) -> None:
    for seed in seeds(part):
        judged(seed)


@pytest.mark.parametrize("seed", [110, 670])
def test_a_server_that_cannot_start_on_a_full_disk_is_started_again(seed: int) -> None:
    judged(seed)


def test_a_seed_is_a_history() -> None:
    """In every process, although sets of texts are visited in another order."""
    told = {_told("1"), _told("2")}
    assert len(told) == 1
    traces = [line.split()[-1] for line in told.pop().splitlines()]
    assert traces == [play(seed).trace[:16] for seed in range(2)]
    assert len(set(traces)) == 2


def _told(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "simulation.servers", "--seeds", "2", "--verbose"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("seed "))


# Twins


def lane_that_answers_before_it_has_waited(patch: Patch) -> None:
    """Who needs a locked row is told that all is well, and tried later."""
    park = LockingLane._park

    def hasty(self: Any, waiting: Any, rows: Any, locked: Any) -> None:
        if self.name != "push":
            park(self, waiting, rows, locked)
            return
        parked = Waiting(waiting.request, waiting.weight, waiting.answer.get_loop().create_future(), waiting.since)
        parked.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        park(self, parked, rows, locked)
        if not waiting.answer.done():
            waiting.answer.set_result(_as_if_stored(waiting.request))

    patch.setattr(LockingLane, "_park", hasty)


def _as_if_stored(messages: Any) -> list[Any]:
    return [Pushed("queued", message.id, "") for message in messages]


def stop_that_calls_what_it_interrupts_refused(patch: Patch) -> None:
    patch.setattr(network, "error_response", lambda error: error_response(_plainly(error, ServerStopping)))


def _plainly(error: Any, kind: type[Any]) -> Any:
    return kind() if isinstance(error, kind) else error


def ack_that_believes_the_last_try(patch: Patch) -> None:
    patch.setattr(AckRequest, "lost", property(lambda self: False, lambda self, value: None))


def long_poll_that_parks_without_another_look(patch: Patch) -> None:
    """A push that is committed between the probe and the parking wakes nobody."""
    patch.setattr(long_polls, "activity_of", lambda group: 0)


TWINS: dict[Callable[[Patch], None], tuple[str, str]] = {
    journal_without_fsync: ("journal", "nothing-lost"),
    replay_that_reorders: ("journal", "order-of-pushes"),
    replay_that_forgets: ("journal", "nothing-lost"),
    push_that_overtakes_the_journal: ("journal", "order-of-pushes"),
    operations_in_the_wrong_order: ("overload", "order-of-pushes"),
    ack_that_takes_refusals_for_success: ("lease", "nothing-after-its-ack"),
    ack_that_believes_the_last_try: ("dead-letters", "dead-letters"),
    lane_that_answers_before_it_has_waited: ("log", "nothing-lost"),
    stop_that_calls_what_it_interrupts_refused: ("log", "refused-means-nothing"),
    wake_up_that_wakes_nobody: ("parked", "late"),
    long_poll_that_parks_without_another_look: ("parked", "late"),
}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_the_twin_is_found(monkeypatch: Patch, twin: Callable[[Patch], None]) -> None:
    twin(monkeypatch)
    workload, complaint = TWINS[twin]
    found: set[str] = set()
    for seed in range(TRIES):
        outcome = play(seed, workload)
        found |= {*outcome.verdict.by_rule(), *(text.partition(":")[0] for text in outcome.complaints)}
        if complaint in found:
            return
    pytest.fail(f"{complaint} is not among what was found: {found}")
