"""The checker finds nothing in good histories, and everything in those that were corrupted."""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Literal, TypeAlias
from xml.etree import ElementTree

import pytest
from histories import generated
from passing_time import pass_time

from queenmq.client import NetworkError, Operation, Overloaded, QueenError, ServerFailed, TransactionFailed
from queenmq.clock import SYSTEM, ManualClock
from queenmq.errors import HttpError, StartupError
from queenmq.verify import BadHistory, check, read_history, workload, write_history
from queenmq.verify.clients import Clients, Load
from queenmq.verify.corruptions import CORRUPTIONS, Corruption, a_partition_is_leased_twice
from queenmq.verify.history import (
    Ack,
    Acked,
    Answer,
    Completion,
    Dead,
    Delivered,
    Done,
    Drain,
    Event,
    Fault,
    Invocation,
    ListDead,
    Outcome,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Request,
    Seek,
    Stored,
    Transact,
)
from queenmq.verify.model import ModelQueue
from queenmq.verify.plot import plot
from queenmq.verify.recorder import NOTHING_KEPT, Recorder, outcome_of
from queenmq.verify.self_test import corrupted
from queenmq.verify.shrink import minimal
from queenmq.verify.workload import WORKLOADS

Step: TypeAlias = tuple[Request, Outcome, Answer | None]


@pytest.mark.parametrize("seed", [*range(20), *(random.randrange(20, 2**31) for _ in range(20))])
def test_good_histories_are_valid(seed: int) -> None:
    verdict = check(ModelQueue(seed).run(150))
    assert verdict.violations == []


def test_every_rule_has_something_to_judge() -> None:
    verdict = check(ModelQueue(0).run(2000))
    assert [rule for rule, times in verdict.checked.items() if not times] == []


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.__name__)
def test_each_corruption_is_named(corruption: Corruption) -> None:
    history = corrupted(corruption)
    violations = [one for one in check(history).violations if one.rule == CORRUPTIONS[corruption]]
    assert violations
    # What is shown of it is a history that has the same fault by itself, and of which nothing can be left out.
    shown = minimal(history, violations[0])
    assert 0 < len(shown) < len(history) / 4
    assert violations[0].text in {one.text for one in check(shown).violations}


@pytest.mark.parametrize(("pushed", "rules"), [("b1", set()), ("b2", {"all-or-nothing"})])
def test_a_transaction_is_judged_by_what_only_it_has_pushed(pushed: str, rules: set[str]) -> None:
    """Of one with an unknown outcome, b1 is stored and b2 is not: if another one has pushed b1, too, it may be its."""
    one, two = Delivered("a", 1, "a1"), Delivered("a", 2, "a2")
    steps: list[Step] = [
        (Push("q", "a", ["a1", "a2"]), "ok", Pushed(["stored", "stored"])),
        (Pop("q", "g", 5), "ok", Popped("lost", [one, two])),
        (Transact([Push("q", "b", ["b1", "b2"])], [Ack("lost", ["a1", "a2"])]), "info", None),
        (Pop("q", "g", 5), "ok", Popped("kept", [one, two])),
        (Transact([Push("q", "b", [pushed])], [Ack("kept", ["a1"])]), "ok" if pushed == "b1" else "fail", Done()),
        (Read("q", "b"), "ok", Stored([Delivered("b", 1, "b1")])),
    ]
    assert set(check(_history(steps)).by_rule()) == rules


def _history(steps: Sequence[Step], pause: float = 10) -> list[Event]:
    """Each ends before the next one begins."""
    history: list[Event] = []
    for op, (request, outcome, answer) in enumerate(steps):
        history.append(Invocation(op, "client", pause * op, request))
        history.append(Completion(op, pause * op + pause / 10, outcome, answer))
    return history


def _pop(lease: str, *offsets: int) -> Step:
    return Pop("q", "g", 5), "ok", Popped(lease, [Delivered("a", offset, f"a{offset}") for offset in offsets])


def _ack(lease: str, *offsets: int) -> Step:
    return Ack(lease, [f"a{offset}" for offset in offsets]), "ok", Acked([True] * len(offsets))


def _seek(outcome: Outcome) -> Step:
    return Seek("q", "g"), outcome, Done() if outcome == "ok" else None


def _push(offset: int) -> Step:
    return Push("q", "a", [f"a{offset}"]), "ok", Pushed(["stored"])


_PUSHED: Step = Push("q", "a", ["a1", "a2", "a3"]), "ok", Pushed(["stored"] * 3)


@pytest.mark.parametrize(
    ("outcome", "after", "rules"),
    [
        ("info", [_pop("2", 2)], set()),
        ("info", [_pop("2", 1)], set()),
        # It may be done much later than its answer came.
        ("info", [_pop("2", 2), _ack("2", 2), _pop("3", 1, 2)], set()),
        ("info", [_pop("2", 3)], {"order-of-delivery"}),
        ("info", [_pop("2", 1), _ack("2", 1), _pop("3", 1)], {"nothing-after-its-ack"}),
        ("info", [_seek("info"), _pop("2", 1), _ack("2", 1), _pop("3", 1)], set()),
        ("info", [_seek("ok"), _pop("2", 2)], {"order-of-delivery"}),
        ("ok", [_pop("2", 1)], set()),
        ("ok", [_pop("2", 2)], {"order-of-delivery"}),
        ("ok", [_pop("2", 1), _ack("2", 1), _pop("3", 1)], {"nothing-after-its-ack"}),
        ("fail", [_pop("2", 2)], set()),
        ("fail", [_pop("2", 1)], {"nothing-after-its-ack"}),
    ],
)
def test_an_unknown_seek_moves_a_group_once_at_any_time_or_never(
    outcome: Outcome, after: list[Step], rules: set[str]
) -> None:
    stored: Step = Read("q", "a"), "ok", Stored([Delivered("a", offset, f"a{offset}") for offset in (1, 2, 3)])
    steps = [_PUSHED, _pop("1", 1), _ack("1", 1), _seek(outcome), *after, stored]
    assert set(check(_history(steps)).by_rule()) == rules


def _forward(to: Literal["moment", "end"], outcome: Outcome = "ok") -> Step:
    seek = Seek("q", "g", "end") if to == "end" else Seek("q", "g", "moment", "a", "a2")
    return seek, outcome, Done() if outcome == "ok" else None


@pytest.mark.parametrize(
    ("seek", "after", "rules"),
    [
        (_forward("end"), [_push(4), _pop("2", 4)], set()),
        (_forward("end"), [_push(4), _pop("2", 3)], {"seeks"}),
        (_forward("end"), [_push(4), _push(5), _pop("2", 5)], {"order-of-delivery"}),
        # What comes while it runs, it may have passed over.
        (_forward("end", "info"), [_push(4), _push(5), _pop("2", 5)], set()),
        (_forward("end", "fail"), [_pop("2", 3)], {"order-of-delivery"}),
        (_forward("end"), [_seek("ok"), _pop("2", 1)], set()),
        (_forward("end"), [_seek("ok"), _pop("2", 2)], {"order-of-delivery"}),
        (_forward("moment"), [_pop("2", 3)], set()),
        (_forward("moment"), [_pop("2", 2)], set()),  # times may be cut short
        (_forward("moment"), [_pop("2", 1)], {"seeks"}),
        (_forward("moment"), [_push(4), _pop("2", 4)], {"order-of-delivery"}),
        (_forward("moment", "info"), [_pop("2", 1)], set()),  # it may bring a1 back once
        (_forward("moment", "info"), [_pop("2", 1), _ack("2", 1), _pop("3", 1)], {"nothing-after-its-ack"}),
    ],
)
def test_a_seek_passes_over_what_was_there_and_nothing_else(seek: Step, after: list[Step], rules: set[str]) -> None:
    """a2 was seen before a3 was pushed, and so it is certain that a3 is behind its moment."""
    before = [_push(1), _pop("0", 1), _ack("0", 1), _push(2), _pop("1", 2), _push(3)]
    count = 3 + sum(isinstance(request, Push) for request, _, _ in after)
    stored = Stored([Delivered("a", offset, f"a{offset}") for offset in range(1, count + 1)])
    read: Step = Read("q", "a"), "ok", stored
    assert set(check(_history([*before, seek, *after, read])).by_rule()) == rules


@pytest.mark.parametrize(("outcome", "rules"), [("info", set()), ("ok", {"one-lease-at-a-time"})])
def test_an_unknown_seek_may_end_leases_that_were_given_out_after_it(outcome: Outcome, rules: set[str]) -> None:
    steps = [_PUSHED, _seek(outcome), _pop("1", 1), _pop("2", 1)]
    assert set(check(_history(steps, 0.1)).by_rule()) == rules


@pytest.mark.parametrize(("outcome", "is_certain"), [("info", False), ("fail", True)])
def test_failures_before_and_after_an_unknown_seek_need_not_make_a_dead_letter(
    outcome: Outcome, is_certain: bool
) -> None:
    first: Step = Ack("1", ["a1"], "failed"), "ok", Acked([True], [False])
    second: Step = Ack("2", ["a1"], "failed"), "ok", Acked([True], [False])
    listed: Step = ListDead("q", "g", 1), "ok", Dead([])
    steps = [_PUSHED, _pop("1", 1), first, _seek(outcome), _pop("2", 1), second, listed]
    assert check(_history(steps)).by_rule() == ({"dead-letters": 1} if is_certain else {})


async def test_a_seek_takes_until_its_operation_is_completed() -> None:
    """It is answered with 202 when it is not done at once, and groups are moved after that."""
    recorder = Recorder(SYSTEM)
    statuses = iter(["processing", "completed"])
    seen: list[int] = []

    async def seek(*_: object, **__: object) -> dict[str, str]:
        return {"operationId": "o"}

    async def operation(_: str) -> Operation:
        seen.append(len(recorder.history))
        return Operation(status=next(statuses))

    queen: Any = SimpleNamespace(admin=SimpleNamespace(seek_consumer_group=seek), operation=operation)
    await Clients(queen, {"one": queen}, "q", Load(), recorder).seek("seeker", "g")
    assert seen == [1, 1]
    assert isinstance(recorder.history[1], Completion)
    assert recorder.history[1].outcome == "ok"


@pytest.mark.parametrize("status", ["failed", "cancelled", "processing"])
async def test_a_seek_whose_operation_does_not_end_well_may_have_moved_the_group(status: str) -> None:
    recorder = Recorder(SYSTEM)

    async def seek(*_: object, **__: object) -> dict[str, str]:
        return {"operationId": "o"}

    async def operation(_: str) -> Operation:
        return Operation(status=status)

    queen: Any = SimpleNamespace(admin=SimpleNamespace(seek_consumer_group=seek), operation=operation)
    await Clients(queen, {"one": queen}, "q", Load(settle_s=0.1), recorder).seek("seeker", "g")
    assert [event.outcome for event in recorder.history if isinstance(event, Completion)] == ["info"]


def test_what_did_not_come_to_its_end_is_not_judged() -> None:
    """A drain that ran out, a partition and dead letters that could not be read: nobody knows what they would show."""
    history: list[Event] = []
    requests = (Drain("q", "g"), Read("q", "p"), ListDead("q", "g", 2))
    for op, request in enumerate(requests):
        history += [Invocation(op, "end", op, request), Completion(op, op + 0.5, "fail" if op else "info")]
    assert check(history).unjudged == [
        "whether g got everything of q: its drain ran out",
        "what is stored in q/p: it could not be read",
        "the dead letters of g in q: they could not be listed",
    ]
    # One that was tried again, and came to its end.
    answers = (Done(), Stored([]), Dead([]))
    for op, (request, answer) in enumerate(zip(requests, answers, strict=True), 3):
        history += [Invocation(op, "end", op, request), Completion(op, op + 0.5, "ok", answer)]
    assert check(history).unjudged == []
    assert all(check(ModelQueue(seed).run(150)).unjudged == [] for seed in range(5))


async def test_a_partition_is_read_again_if_that_fails() -> None:
    failures = [NetworkError("gone", sent=True), NetworkError("gone again", sent=True)]

    async def read(offset: int, limit: int) -> list[Any]:
        if failures:
            raise failures.pop()
        return []

    source = SimpleNamespace(read=read)
    source.queue = source.partition = lambda name: source
    recorder = Recorder(SYSTEM)
    clients = Clients(source, {}, "q", Load(), recorder)  # type: ignore[arg-type]
    await clients._read("p0")
    assert check(recorder.history).unjudged == []


async def test_nothing_goes_on_behind_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """If what goes on beside a workload fails, the workload is over before its history is."""
    over = []

    async def forever(clients: Clients) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.append("the workload")

    async def beside(recorder: Recorder) -> None:
        await asyncio.sleep(0)
        raise StartupError("the server one is not well")

    monkeypatch.setitem(WORKLOADS, "log", forever)
    monkeypatch.setattr(workload, "Queen", _NoQueen)
    with pytest.raises(StartupError):
        await workload.run(["one"], "log", "q", Load(), keep=True, beside=beside)
    assert over == ["the workload"]


async def test_pushes_that_cannot_be_switched_on_again_end_the_workload() -> None:
    class Away:
        async def set_maintenance_mode(self, enabled: bool) -> None:
            raise NetworkError("gone", sent=True)

    clients = Clients(SimpleNamespace(admin=Away()), {}, "q", Load(settle_s=0.1), Recorder(SYSTEM))  # type: ignore[arg-type]
    with pytest.raises(NetworkError):
        await clients.maintain(False)


async def test_accepted_operations_are_asked_about_meanwhile() -> None:
    """Servers forget them: what is asked for at the end only would be gone."""
    clock = ManualClock()
    done: set[str] = set()

    async def operation(name: str) -> Operation:
        return Operation(status="completed" if name in done else "pending")

    queen: Any = SimpleNamespace(operation=operation)
    clients = Clients(queen, {"one": queen}, "q", Load(), Recorder(clock), clock)
    clients._operations = {"a", "b"}
    asking = asyncio.create_task(clients.ask_meanwhile())
    for now_done, left in (("a", {"b"}), ("b", set())):
        done.add(now_done)
        while clients._operations != left:
            await pass_time(clock, 1)
    asking.cancel()


async def test_timers_that_are_only_late_are_not_called_lost() -> None:
    clock = ManualClock()

    async def timers(_: int) -> list[str]:
        return ["late"]

    queen: Any = SimpleNamespace(queue=lambda _: SimpleNamespace(timers=timers))
    clients = Clients(queen, {"one": queen}, "q", Load(settle_s=3), Recorder(clock), clock)
    waiting = asyncio.create_task(clients._timers_pushed())
    while not waiting.done():
        await pass_time(clock, 1)
    with pytest.raises(QueenError, match="have not been pushed within 3 s"):
        await waiting


async def test_a_transaction_whose_answer_is_not_waited_for_is_unknown() -> None:
    recorder = Recorder(SYSTEM)

    async def forever() -> None:
        await asyncio.Event().wait()

    transaction: Any = SimpleNamespace(commit=forever, ack=lambda messages: transaction)
    queen: Any = SimpleNamespace(transaction=lambda: transaction)
    message: Any = SimpleNamespace(lease_id="l", data={"id": "a"})
    await Clients(queen, {"one": queen}, "q", Load(), recorder).transact("p", [message], [], 0.01)
    assert [event.outcome for event in recorder.history if isinstance(event, Completion)] == ["info"]


class _NoQueen:
    """A client that is asked nothing but to make a queue."""

    def __init__(self, *servers: object, **options: object) -> None:
        self.queue = self.config = lambda *_: self

    async def __aenter__(self) -> _NoQueen:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def create(self) -> None: ...


@pytest.mark.parametrize(("outcome", "rules"), [("info", {}), ("fail", {"stored-once": 1})])
def test_a_duplicate_may_be_of_a_push_at_the_same_time(outcome: Outcome, rules: dict[str, int]) -> None:
    """Whose answer got lost: if it was refused, nobody has pushed the message before."""
    history: list[Event] = [
        Invocation(1, "a", 0, Push("q", "p", ["x"])),
        Invocation(2, "b", 1, Push("q", "p", ["x"])),
        Completion(2, 2, outcome),
        Completion(1, 3, "ok", Pushed(["duplicate"])),
    ]
    assert check(history).by_rule() == rules


def test_every_rule_can_be_broken() -> None:
    assert set(CORRUPTIONS.values()) == set(check([]).checked)


def test_an_unknown_push_may_be_there_or_not() -> None:
    push: list[Event] = [Invocation(1, "a", 0, Push("q", "p", ["x"])), Completion(1, 1, "info")]
    pop: list[Event] = [Invocation(2, "a", 2, Pop("q", "g", 1))]
    for messages in ([], [("p", 1, "x")]):
        answer = {"type": "complete", "op": 2, "at": 3, "outcome": "ok"}
        answer["answer"] = {"f": "popped", "lease": "l" if messages else "", "messages": messages}
        assert check([*push, *pop, _event(answer)]).is_valid


def _event(given: object) -> Event:
    import msgspec

    return msgspec.convert(given, Event)  # type: ignore[no-any-return]


def test_it_can_be_written_and_read(tmp_path: Path) -> None:
    history = ModelQueue(1).run(50)
    write_history(tmp_path / "history.jsonl", history)
    assert list(read_history(tmp_path / "history.jsonl")) == history


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['{"type": "invoke"}'], "line 1: Object missing required field"),
        (["nonsense"], "line 1: JSON is malformed"),
        (['{"type":"complete","op":1,"at":0,"outcome":"ok"}'], "operation 1 is completed twice, or before"),
        (
            ['{"type":"invoke","op":1,"process":"a","at":0,"request":{"f":"seek","queue":"q","group":"g"}}'] * 2,
            "invoked twice",
        ),
    ],
)
def test_a_bad_history_is_refused(tmp_path: Path, lines: list[str], why: str) -> None:
    (tmp_path / "bad.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(BadHistory, match=why):
        check(read_history(tmp_path / "bad.jsonl"))


def test_what_is_journalled_keeps_its_order_at_its_server() -> None:
    def pushed(op: int, server: str, status: str) -> list[Event]:
        answer = Pushed([status])  # type: ignore[list-item]
        return [
            Invocation(op, "a", op, Push("q", "p", [f"m{op}"], server)),
            Completion(op, op + 0.5, "ok", answer),
        ]

    def read(*names: str) -> list[Event]:
        stored = [Delivered("p", number, name) for number, name in enumerate(names, 1)]
        return [Invocation(9, "a", 9, Read("q", "p")), Completion(9, 10, "ok", Stored(stored))]

    elsewhere = [*pushed(1, "one", "buffered"), *pushed(2, "two", "stored"), *read("m2", "m1")]
    assert check(elsewhere).is_valid
    same = [*pushed(1, "one", "buffered"), *pushed(2, "one", "stored"), *read("m2", "m1")]
    assert check(same).by_rule() == {"order-of-pushes": 1}
    stored = [*pushed(1, "one", "stored"), *pushed(2, "two", "buffered"), *read("m2", "m1")]
    assert check(stored).by_rule() == {"order-of-pushes": 1}


def test_a_plot_shows_processes_faults_and_what_is_broken() -> None:
    history = [*corrupted(a_partition_is_leased_twice), Fault("kill", 1, 2)]
    drawn = plot("a < b", history, check(history))
    texts = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "kill", "model", "intruder", "shows a broken promise"} <= set(texts)
    assert drawn.count("#c0392b") > 2
    assert ElementTree.fromstring(plot("nothing", [], check([]))) is not None


def test_what_an_error_says_about_the_outcome() -> None:
    assert outcome_of(Overloaded(429, "full")) == "fail"
    assert outcome_of(ServerFailed(503, "away", {"code": "database_unavailable"})) == "fail"
    assert outcome_of(ServerFailed(503, "lost", {"code": "outcome_unknown"})) == "info"
    assert outcome_of(ServerFailed(500, "broken")) == "info"
    # Not from Queen: a proxy may have passed the request on, and lost the answer.
    for status in (502, 503, 504):
        assert outcome_of(ServerFailed(status, "<html>Service Unavailable</html>")) == "info"
        assert outcome_of(ServerFailed(status, "upstream", {"code": "upstream_reset"})) == "info"
    assert outcome_of(NetworkError("cut", sent=True)) == "info"
    assert outcome_of(NetworkError("refused", sent=False)) == "fail"
    assert outcome_of(TransactionFailed("refused", uncertain=False)) == "fail"
    assert outcome_of(TransactionFailed("refused", uncertain=True)) == "info"


def test_the_codes_that_say_that_nothing_was_kept_are_those_of_the_server() -> None:
    """Each 503 of the server but that which says that nobody knows, and that which only servers tell each other."""

    def below(kind: type[HttpError]) -> Iterator[type[HttpError]]:
        yield kind
        for one in kind.__subclasses__():
            yield from below(one)

    importlib.import_module("queenmq.server")
    codes = {kind.code for kind in below(HttpError) if kind.status == 503 and kind.__module__.startswith("queenmq.")}
    assert codes - {"outcome_unknown", "would_journal"} == NOTHING_KEPT


def test_the_cost_of_a_check_grows_with_the_history_and_not_faster() -> None:
    """Counted in instructions of Python, so that it is the same on every machine."""
    short, long = (list(generated(operations, small=2)) for operations in (500, 4000))
    counts = [_instructions(history) for history in (short, long)]
    length = len(long) / len(short)
    assert counts[1] / counts[0] < 1.05 * length, counts


def _instructions(history: list[Event]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        verdict = check(history)
    finally:
        sys.settrace(before)
    assert verdict.violations == []
    return count
