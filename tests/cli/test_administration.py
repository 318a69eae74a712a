"""Looking around and intervening: queues, partitions, groups, dlq, traces, operations, seek, explain."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from server_settings import settings_with

from cli.conftest import PATIENCE_S, Run, Running, serving, spawned, until
from queenmq.client import BlockingQueen, Item

if TYPE_CHECKING:
    from conftest import Postgres


async def _execute(url: str, statement: str, *arguments: object) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval(statement, *arguments))
    finally:
        await connection.close()


def sql(running: Running, statement: str, *arguments: object) -> str:
    return asyncio.run(_execute(running.database_url, statement, *arguments))


def bury(client: BlockingQueen, queue: str, group: str, count: int, partition: str = "Default") -> None:
    """Push so many and let the group give them up."""
    client.queue(queue).partition(partition).push(list(range(count)))
    messages = client.queue(queue).partition(partition).group(group).batch(count).pop()
    assert all(result.success for result in client.ack(messages, "dlq", error="no good"))


# Queues and partitions


def test_queues_are_created_listed_shown_cleared_and_deleted(queen: Run, name: str) -> None:
    made = queen(
        "queues", "create", name, "--option", "leaseTime=17", "--option", "deadLetterQueue=true", "--task", "t"
    )
    assert (made.status, made.out) == (0, f"{name} is configured\n")
    queen("push", name, "1", "2", "--partition", "eu")

    def listed() -> list[tuple[object, ...]]:
        rows = queen("queues", "--search", name, "--json").json
        return [(row["name"], row["messages"]["total"], row["task"]) for row in rows]

    until(listed, [(name, 2, "t")])
    assert name in queen("queues", "list", "--task", "t").out
    shown = queen("queues", "show", name)
    assert ["leaseTime", "17"] in [line.split() for line in shown.out.splitlines()]
    assert "eu" in shown.out
    assert queen("queues", "show", name, "--json").json["queue"]["config"]["deadLetterQueue"] is True
    assert queen("queues", "clear", name, "--partition", "eu", "--yes").out == "2 messages deleted\n"
    assert queen("queues", "delete", name, "--yes").out == f"{name} is deleted\n"
    assert queen("queues", "show", name).status == 3


def test_setting_an_option_keeps_the_others(queen: Run, name: str) -> None:
    queen("queues", "create", name, "--option", "retentionSeconds=60", "--option", "delayedProcessing=5", "--task", "t")
    made = queen("queues", "set", name, "--option", "leaseTime=17", "--option", "ttl=9")
    assert (made.status, made.out) == (0, f"{name} is configured\n")
    about = queen("queues", "show", name, "--json").json["queue"]
    options = about["options"]
    assert (options["leaseTime"], options["retentionSeconds"], options["delayedProcessing"]) == (17, 60, 5)
    assert (options["ttl"], options["retryLimit"], about["task"]) == (9, 3, "t")
    assert queen("queues", "set", name, "--option", "ttl=null", "--json").status == 0
    assert queen("queues", "show", name, "--json").json["queue"]["options"]["ttl"] is None
    assert "delayedProcessing" in queen("queues", "show", name).out
    assert queen("queues", "set", name).status == 2


@pytest.mark.parametrize("word", ["create", "set"])
def test_an_option_that_there_is_not_is_refused(queen: Run, name: str, word: str) -> None:
    queen("push", name, "1")
    refused = queen("queues", word, name, "--option", "leasTime=5")
    assert refused.status == 2
    assert "there is no option 'leasTime'; did you mean 'leaseTime'?" in refused.err
    assert queen("queues", "show", name, "--json").json["queue"]["options"]["leaseTime"] == 300


def test_partitions_are_listed(queen: Run, name: str) -> None:
    for partition in ("eu", "us"):
        queen("push", name, "1", "--partition", partition)
    rows = queen("partitions", name, "--json").json
    assert [(row["name"], row["messages"]["pending"]) for row in rows] == [("eu", 1), ("us", 1)]
    assert [row["name"] for row in queen("partitions", name, "--limit", "1", "--offset", "1", "--json").json] == ["us"]
    assert "eu" in queen("partitions", name).out
    assert queen("partitions", "--limit", "1").status == 0


def test_partitions_may_be_listed_with_the_word_list(queen: Run, name: str) -> None:
    """As the other listings are; a queue that is called so can be named all the same."""
    queen("push", name, "1", "--partition", "eu")
    named = ("partitions", "--json", "list", name)
    assert [row["name"] for row in queen(*named).json] == ["eu"]
    assert {row["queue"] for row in queen("partitions", "list", "--json", "--limit", "1000").json} >= {name}
    missing = queen("partitions", "list", f"{name}-missing")
    assert (missing.status, f"there is no queue '{name}-missing'" in missing.err) == (3, True)
    assert queen("partitions", "list", "--state", "failing").status == 2
    twice = queen("partitions", name, name)
    assert (twice.status, f"one queue at a time, and {name} and {name} are named" in twice.err) == (2, True)
    queen("push", "list", "1", "--partition", "of the queue list")
    try:
        for words in (["list"], ["list", "list"]):
            assert [row["name"] for row in queen("partitions", *words, "--json").json] == ["of the queue list"]
    finally:
        queen("queues", "delete", "list", "--yes")


@pytest.mark.parametrize(
    "arguments",
    [
        ["queues", "show", "{}"],
        ["queues", "set", "{}", "--option", "leaseTime=5"],
        ["queues", "clear", "{}", "--yes"],
        ["queues", "delete", "{}", "--yes"],
        ["partitions", "{}"],
        ["groups", "--queue", "{}"],
        ["messages", "--queue", "{}"],
        ["dlq", "list", "{}"],
        ["dlq", "redrive", "{}", "--yes"],
        ["dlq", "purge", "{}", "--yes"],
        ["seek", "{}", "--group", "g", "--to", "end", "--yes"],
        ["explain", "{}"],
        ["leases", "list", "{}"],
        ["pop", "{}"],
        ["tail", "{}"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_a_queue_that_is_not_there(queen: Run, client: BlockingQueen, name: str, arguments: list[str]) -> None:
    client.queue(name).create()
    wrong = queen(*(argument.format(name[:-1]) for argument in arguments))
    assert (wrong.status, wrong.out) == (3, "")
    assert wrong.err == f"queen: there is no queue {name[:-1]!r}; did you mean {name!r}?\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["push", "{}", "1", "--partition", ""],
        ["push", "", "1"],
        ["pop", "{}", "--partition", ""],
        ["pop", "{}", "--group", ""],
        ["queues", "clear", "{}", "--partition", "", "--yes"],
        ["seek", "{}", "--group", "g", "--partition", "", "--to", "end", "--yes"],
        ["queues", "pause", "{}", "--group", ""],
        ["queues", "show", ""],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_an_empty_name_is_not_all_there_is(queen: Run, client: BlockingQueen, name: str, arguments: list[str]) -> None:
    """Such as that of a variable which nobody has set."""
    client.queue(name).partition("eu").push([1])
    wrong = queen(*(argument.format(name) for argument in arguments))
    assert (wrong.status, wrong.out) == (2, "")
    assert "the name is empty" in wrong.err
    assert queen("queues", "show", name, "--json").json["totals"]["total"] == 1


def test_a_queue_that_has_only_timers(queen: Run, name: str) -> None:
    queen("push", name, "1", "2", "--delay", "1h")
    wrong = queen("pop", name)
    assert (wrong.status, wrong.out) == (3, "")
    told = f"there is no queue {name!r} yet: its timers make it when they push; `queen timers list {name}` shows them"
    assert wrong.err == f"queen: {told}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["queues", "sho", "q"], "Did you mean 'show'?"),
        (["queus"], "Did you mean 'queues'?"),
        (["queues", "--serch", "x"], "--search"),
        (["queues", "create", "q", "--option", "nonsense"], "not NAME=VALUE"),
        (["queues", "show"], "Missing argument 'QUEUE'"),
        (["groups", "lagging", "--least", "-1"], "--least"),
        (["dlq", "list", "--limit", "none"], "not a whole number above 0"),
        (["operations", "--status", "odd"], "--status"),
        (["messages", "--since", "yesterday"], "ISO-8601"),
        (["traces", "of", "one"], "Missing argument"),
        (["explain"], "Missing argument 'QUEUE'"),
        (["seek", "q", "--to", "end"], "--group"),
        (["seek", "q", "--group", "g", "--to", "soon"], "neither beginning nor end nor"),
        (["top", "--every", "0"], "not a number above 0"),
        (["completion", "powershell"], "bash"),
        (["doctor", "--json", "extra"], "extra"),
        (["admin", "migration"], "Did you mean 'migrations'?"),
        (["dlq", "orders"], "No such command 'orders'. Did you mean `queen dlq list orders`?"),
        (["timers", "orders"], "Did you mean `queen timers list orders`?"),
        (["lag"], "No such command 'lag'; see `queen groups` and `queen groups lagging`."),
        (["push", "q", "1", "--delay", "5"], "'5' is not a duration such as 90s, 15m, 2h or 1d\n"),
        (["status", "--tokn", "x"], "Did you mean '--token'?"),
        (["--server", "http://x", "serve"], "`queen serve` takes no --server: --host and --port say where it listens."),
        (["--token", "x", "db", "url"], "`queen db url` takes no --token: it does not talk to a server."),
        (["--cacert", "x", "completion", "bash"], "`queen completion` takes no --cacert"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_that_cannot_be_used(queen: Run, arguments: list[str], told: str) -> None:
    wrong = queen(*arguments)
    assert (wrong.status, wrong.out) == (2, "")
    assert wrong.err.startswith("usage: queen")
    assert told in wrong.err


def test_an_option_that_queues_do_not_have(queen: Run, name: str) -> None:
    refused = queen("queues", "create", name, "--option", "leaseTime=never")
    assert refused.status == 1
    assert "leaseTime" in refused.err
    assert len(refused.err.splitlines()) == 1


# Groups and seek


def test_groups_are_listed_shown_moved_and_deleted(queen: Run, name: str) -> None:
    group = f"billing-{name}"
    for partition in ("eu", "us"):
        queen("push", name, "1", "2", "--partition", partition)
    queen("pop", name, "--group", group, "--batch", "2", "--ack")
    until(
        lambda: [(row["name"], row["totalLag"]) for row in queen("groups", "--queue", name, "--json").json],
        [(group, 2)],
    )
    assert group in queen("groups").out
    shown = queen("groups", "show", group, "--json").json[name]["partitions"]
    assert sorted(place["offsetLag"] for place in shown) == [0, 2]
    assert "eu" in queen("groups", "show", group, "--queue", name).out
    assert queen("seek", name, "--group", group, "--to", "beginning").status == 2
    moved = queen("seek", name, "--group", group, "--to", "beginning", "--yes")
    assert moved.out == f"{group} is moved in 2 partitions of {name}\n"
    one = queen("seek", name, "--group", group, "--to", "end", "--partition", "eu", "--yes", "--json").json
    assert one["cursorMovedTo"] == 2
    assert len(queen("pop", name, "--group", group, "--batch", "9", "--partitions", "2", "--json").lines) == 2
    assert queen("seek", name, "--group", group, "--to", "2020-01-01T00:00:00+02:00", "--yes").status == 0
    assert queen("groups", "delete", group, "--queue", name).status == 2
    assert queen("groups", "delete", group, "--queue", name, "--yes").out == f"{group} is deleted in 2 partitions\n"
    until(lambda: queen("groups", "show", group).status, 3)
    assert "there is no group" in queen("groups", "show", group).err


def test_groups_that_are_not_there(queen: Run, name: str) -> None:
    group = f"shipping-{name}"
    queen("push", name, "1")
    queen("pop", name, "--group", group)
    for arguments in (
        ["groups", "show", group[:-1]],
        ["groups", "delete", group[:-1], "--yes"],
        ["seek", name, "--group", group[:-1], "--to", "end", "--yes"],
    ):
        wrong = queen(*arguments)
        assert (wrong.status, f"did you mean {group!r}" in wrong.err) == (3, True)
    queen("push", f"{name}-other", "1")
    elsewhere = queen("seek", f"{name}-other", "--group", group, "--to", "end", "--yes")
    assert (elsewhere.status, "has no position" in elsewhere.err) == (3, True)


def test_what_lags(queen: Run, name: str) -> None:
    queen("push", name, "1", "2")
    queen("pop", name, "--group", "slow", "--ack")

    def lagging() -> list[int]:
        rows = queen("groups", "lagging", "--least", "0", "--json").json
        return [row["offset_lag"] for row in rows if row["queue_name"] == name]

    until(lagging, [1])
    assert name in queen("groups", "lagging", "--least", "0").out
    assert "nothing has waited for" in queen("groups", "lagging", "--least", "1000000").err


# Dead letters


def test_dead_letters_are_redriven_to_the_group_that_is_named(queen: Run, client: BlockingQueen, name: str) -> None:
    bury(client, name, "billing", 3)
    shipping = client.queue(name).group("shipping").batch(3).pop()
    client.ack(shipping, "dlq")
    assert queen("dlq", "list", name, "--json").json["total"] == 6
    assert "no good" in queen("dlq", "list", name, "--group", "billing").out
    assert queen("dlq", "redrive", name, "--group", "billing").status == 2
    assert queen("dlq", "redrive", name, "--group", "billing", "--yes").out == "3 dead letters redriven\n"
    assert queen("dlq", "list", name, "--json").json["total"] == 3
    again = queen("pop", name, "--group", "billing", "--batch", "9", "--json").lines
    assert [message["data"] for message in again] == [0, 1, 2]
    assert queen("pop", name, "--group", "shipping").status == 4
    assert queen("dlq", "redrive", name, "--group", "billing", "--json").json == {"redriven": 0}


def test_dead_letters_of_one_cause_are_redriven(queen: Run, client: BlockingQueen, name: str) -> None:
    client.queue(name).push([0, 1, 2, 3])
    for message in client.queue(name).group("g").batch(4).pop():
        client.ack(message, "dlq", error=f"timeout after {message.data} s" if message.data else "no such mailbox")
    like = ("--fingerprint", "timeout after * s")
    assert queen("dlq", "list", name, *like, "--json").json["total"] == 3
    assert queen("dlq", "list", name, "--error", "TIMEOUT", "--to", "2020-01-01", "--json").json["total"] == 0
    old = queen("dlq", "redrive", name, *like, "--to", "2020-01-01T00:00:00Z", "--yes")
    assert old.out == "0 dead letters redriven\n"
    assert queen("dlq", "redrive", name, "--error", "after 2", "--from", "2020-01-01", "--yes", "--json").json == {
        "redriven": 1
    }
    assert queen("dlq", "redrive", name, *like, "--yes").out == "2 dead letters redriven\n"
    assert queen("dlq", "list", name, "--json").json["total"] == 1
    assert queen("dlq", "redrive", name, "--from", "soon", "--yes").status == 2


def test_dead_letters_are_purged(queen: Run, client: BlockingQueen, name: str) -> None:
    bury(client, name, "g", 3, "eu")
    bury(client, name, "g", 2, "us")
    assert queen("dlq", "purge", name).status == 2
    assert queen("dlq", "purge", name, "--partition", "us", "--yes").out == "2 dead letters purged\n"
    assert queen("dlq", "list", name, "--limit", "2").err.startswith("3 in all")
    assert queen("dlq", "purge", name, "--group", "other", "--yes").out == "0 dead letters purged\n"
    assert queen("dlq", "purge", name, "--yes", "--json").json == {"purged": 3}
    assert queen("dlq", "list", name).err == "no dead letters\n"
    assert queen("pop", name, "--group", "g").status == 4


def test_many_dead_letters_take_several_steps(queen: Run, client: BlockingQueen, name: str) -> None:
    bury(client, name, "g", 1200)
    assert queen("dlq", "redrive", name, "--yes").out == "1,200 dead letters redriven\n"
    assert len(queen("pop", name, "--group", "g", "--batch", "2000", "--json").lines) == 1200


# Traces


def test_traces_are_shown(queen: Run, client: BlockingQueen, name: str) -> None:
    client.queue(name).push("x")
    [message] = client.queue(name).group("g").pop()
    client.trace(message, {"step": 1}, names=[name], event_type="begun")
    client.trace(message, {"step": 2}, names=[name])
    assert name in queen("traces", "--limit", "1000").out
    shown = queen("traces", "show", name, "--json").json
    assert [trace["data"]["step"] for trace in shown] == [2, 1]
    assert "begun" in queen("traces", "show", name).out
    of = queen("traces", "of", f"{name}/Default", message.transaction_id)
    assert of.out.index('{"step": 1}') < of.out.index('{"step": 2}')
    assert "there are no traces with the name" in queen("traces", "show", f"{name}-other").err
    assert queen("traces", "of", f"{name}/other", "t").status == 3


# Operations


def test_operations_are_looked_at_and_cancelled(queen: Run, running: Running, client: BlockingQueen, name: str) -> None:
    client.queue(name).create()
    failed = sql(
        running,
        "INSERT INTO queen.operation_queue (id, kind, queue_name, partition_name, status, error, attempts) "
        "VALUES ($1, 'push', $2, 'Default', 'failed', 'it broke', 3) RETURNING id",
        uuid.uuid4(),
        name,
    )
    [listed] = queen("operations", "--queue", name, "--status", "failed", "--json").json
    assert (listed["id"], listed["errorMessage"]) == (failed, "it broke")
    assert "it broke" in queen("operations", "--queue", name).out
    assert "it broke" in queen("operations", "show", failed).out
    waited = queen("operations", "wait", failed)
    assert (waited.status, "did not succeed: it broke" in waited.err) == (1, True)
    assert queen("operations", "cancel", failed).out == f"operation {failed} is cancelled\n"
    assert queen("operations", "retry", failed).status == 1
    assert "database connections in use" in queen("operations", "stats").out
    assert "stats" in queen("operations", "stats", "--json").json
    assert queen("operations", "show", str(uuid.uuid4())).status == 3
    assert queen("operations", "show", "no-id").status == 1


# Explain


def test_explain_says_why_in_sentences(queen: Run, name: str) -> None:
    queen("push", name, "1", "--partition", "customer-7")
    never = queen("explain", name, "--partition", "customer-7", "--group", "billing")
    assert (never.status, "has never popped here" in never.out) == (0, True)
    queen("pop", name, "--group", "billing")
    near = queen("explain", name, "--group", "biling")
    assert "Did you mean group 'billing'?" in near.out
    leased = queen("explain", name, "--partition", "customer-7", "--group", "billing")
    assert "acknowledged" in leased.out
    assert "This ends by itself at" in leased.out
    assert queen("explain", name, "--group", "billing", "--json").json["reason"] == "leased"
    lost = queen("explain", name, "--partition", "nobody")
    assert (lost.status, "has no partition 'nobody'" in lost.out) == (3, True)
    queen("push", name, "1", "--partition", "customer-8")
    assert "- customer-8: " in queen("explain", name, "--group", "billing").out


def test_the_lease_of_a_consumer_that_is_gone_is_released(queen: Run, name: str) -> None:
    queen("push", name, "1", "2", "--partition", "customer-7")
    held = queen("pop", name, "--group", "billing", "--json").json
    assert "`queen leases release`" in queen("explain", name, "--group", "billing").out
    [shown] = queen("leases", "list", name, "--group", "billing", "--json").json
    assert (shown["partition"], shown["name"], shown["leaseId"]) == ("customer-7", "billing", held["leaseId"])
    assert held["leaseId"] in queen("leases", "list", name).out.replace("\n", "")
    assert queen("leases", "list", name, "--group", "others", "--json").json == []
    where = ("--queue", name, "--partition", "customer-7")
    mistaken = queen("leases", "release", *where, "--yes")
    assert (mistaken.status, f"`queen leases list {name}` says who does" in mistaken.err) == (3, True)
    released = queen("leases", "release", *where, "--group", "billing", "--yes")
    assert released.out == f"lease {held['leaseId']} has ended; 1 message will be delivered again\n"
    again = queen("pop", name, "--group", "billing", "--json").json
    assert again["transactionId"] == held["transactionId"]
    assert queen("leases", "release", again["leaseId"], "--yes", "--json").json[0]["messages"] == 1
    assert queen("leases", "release", again["leaseId"], "--yes").status == 3
    assert queen("explain", name, "--group", "billing", "--json").json["partitions"][0]["attempts"] == 0


@pytest.mark.parametrize("given", [(), ("id", "--queue", "q"), ("--queue", "q"), ("--partition", "p")])
def test_which_lease_is_released_must_be_said(queen: Run, given: tuple[str, ...]) -> None:
    refused = queen("leases", "release", *given, "--yes")
    assert (refused.status, "give the ids of leases" in refused.err) == (2, True)


# Questions


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 0), ("y", 0, 3)])
def test_at_a_terminal_a_confirmation_is_asked_for(
    running: Running, queen: Run, name: str, tmp_path: Path, answer: str, status: int, left: int
) -> None:
    queen("push", name, "1", "2")
    main, terminal = pty.openpty()
    asking = spawned(
        "queues",
        "delete",
        name,
        url=running.url,
        folder=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    os.write(main, f"{answer}\n".encode())
    _, err = asking.communicate(timeout=PATIENCE_S)
    os.close(main)
    assert asking.returncode == status
    assert f"delete {name} with 2 messages" in err.decode()
    assert queen("queues", "show", name).status == left


# Work that goes on behind its answer


@pytest.fixture(scope="module")
def patient(postgres: Postgres) -> Iterator[Running]:
    """A server that answers before it has finished anything larger."""
    url = asyncio.run(postgres.create())
    with serving(settings_with(operations={"step": 10, "wait_ms": 0}), url) as server:
        yield server
    asyncio.run(postgres.drop(url))


def test_long_work_is_followed_to_its_end(
    queen: Run, patient: Running, environment: pytest.MonkeyPatch, name: str
) -> None:
    environment.setenv("QUEEN_URL", patient.url)
    with BlockingQueen(patient.url) as client:
        bury(client, name, "g", 100)
        answer = client.admin.seek_consumer_group("g", name, to_end=True)
    assert answer["success"]
    assert queen("dlq", "redrive", name, "--yes").out == "100 dead letters redriven\n"
    assert len(queen("pop", name, "--group", "g", "--batch", "200", "--json").lines) == 100
    cleared = queen("queues", "clear", name, "--yes", "--json").json
    assert cleared["deleted"] == 100
    shown = queen("operations", "show", cleared["operationId"])
    assert "100 of 100" in shown.out
    assert cleared["operationId"] in queen("operations", "--type", "clear").out
    assert queen("operations", "wait", cleared["operationId"], "--json").json["status"] == "completed"
    assert queen("queues", "delete", name, "--yes").status == 0


# Reading, and pushing with a condition


def test_a_partition_is_read_without_a_group(queen: Run, name: str) -> None:
    place = f"{name}/p"
    assert queen("push", name, "1", "2", "3", "-p", "p", "--expect-last-offset", "0").status == 0
    refused = queen("push", name, "4", "-p", "p", "--expect-last-offset", "2")
    assert (refused.status != 0, "is 3, not 2" in refused.err) == (True, True)
    assert [row["offset"] for row in json.loads(queen("messages", "read", place, "--json").out)] == [1, 2, 3]
    from_two = json.loads(queen("messages", "read", place, "--offset", "2", "--json").out)
    assert [row["payload"] for row in from_two] == [2, 3]
    assert len(json.loads(queen("messages", "read", place, "--limit", "2", "--json").out)) == 2
    assert "queue/partition" in queen("messages", "read", name).err


# Pauses


def test_a_group_is_paused_and_resumed(queen: Run, name: str) -> None:
    queen("push", name, "1")
    assert queen("queues", "pause", name, "--group", "g", "--reason", "why").out == f"{name} for group g is paused\n"
    assert "has been paused since" in queen("queues", "pause", name, "--group", "g").out
    assert queen("queues", "pause", name).status == 0
    assert name in queen("queues", "pauses").out
    resumed = queen("queues", "resume", name)
    assert (resumed.out, "1 pause of" in resumed.err) == (f"{name} is resumed\n", True)
    assert "was not paused" in queen("queues", "resume", name).out
    assert "needs --group" in queen("queues", "pause", name, "--partition", "p").err
    assert queen("queues", "resume", name, "--group", "g").err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["queues", "pause", "{}", "--group", "{}-billling"],
        ["policies", "set", "{}", "--group", "{}-billling", "--leases", "3"],
        ["groups", "filter", "{}", "{}-billling", "headers.a = 'b'"],
        ["groups", "conflation", "{}", "{}-billling", "on"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_what_is_said_of_a_group_that_does_not_exist(
    queen: Run, client: BlockingQueen, name: str, arguments: list[str]
) -> None:
    """It may come; but mostly its name is misspelt."""
    client.queue(name).push([1])
    [message] = client.queue(name).group(f"{name}-billing").pop()
    client.ack(message)

    given = [argument.replace("{}", name) for argument in arguments]

    def told(group: str) -> str:
        done = queen(*(argument.replace("billling", group) for argument in given))
        assert (done.status, bool(done.out)) == (0, True)
        return done.err

    assert told("bilingg") == f"There is no group {name + '-bilingg'!r} yet; did you mean {name + '-billing'!r}?\n"
    assert told("billing") == ""
    assert queen(*given, "--json").err == ""  # who asks for JSON gets what the server says


# Policies


def test_a_policy_is_set_listed_and_removed(queen: Run, name: str) -> None:
    queen("push", name, "1", "2")
    given = ("policies", "set", name, "--group", "g", "--exponential", "60000", "--limit", "2", "--poison", "skip")
    assert queen(*given).out == f"the policy of {name} for group g is set\n"
    assert "as it was" in queen(*given).out
    [shown] = [row for row in json.loads(queen("policies", "--json").out) if row["queue"] == name]
    assert shown["retry"] == {"strategy": "exponential", "delayMs": 60000, "limit": 2, "poison": "skip"}
    assert "no message of" in queen("policies", "skipped", name).err
    popped = json.loads(queen("pop", name, "--group", "g", "--json").out)
    failed = ("ack", popped["partitionId"], popped["transactionId"], "--lease", popped["leaseId"])
    assert queen(*failed, "--group", "g", "--status", "failed").status == 0
    assert popped["transactionId"] in queen("policies", "skipped", name).out
    assert queen("policies", "remove", name, "--group", "g").out == f"{name} for group g has no policy any more\n"
    assert "had no policy" in queen("policies", "remove", name).out
    assert queen("policies", "set", name, "--delays", "1000,9000", "--poison", "park").status == 0
    assert "exclude each other" in queen("policies", "set", name, "--fixed", "1", "--delays", "1").err
    assert "is not a list" in queen("policies", "set", name, "--delays", "soon").err
    assert "needs a strategy" in queen("policies", "set", name, "--factor", "3").err
    assert queen("policies", "set", name, "--breaker", "0/3", "--breaker-pause", "60").status == 0
    [shown] = [row for row in json.loads(queen("policies", "--json").out) if row["queue"] == name]
    assert (shown["breaker"], shown["retry"]["poison"]) == ({"failures": 0, "of": 3, "pauseSeconds": 60}, "park")
    assert "is not like 5/10" in queen("policies", "set", name, "--breaker", "5").err
    assert "needs --breaker" in queen("policies", "set", name, "--breaker-pause", "5").err
    assert "say what to set" in queen("policies", "set", name).err
    assert queen("policies", "set", name, "--leases", "3", "--rate", "0.5").status == 0
    [shown] = [row for row in json.loads(queen("policies", "--json").out) if row["queue"] == name]
    assert shown["limits"] == {"leases": 3, "rate": 0.5}
    assert queen("policies", "set", name, "--fair-by", ":", "--weight", "acme=3").status == 0
    [shown] = [row for row in json.loads(queen("policies", "--json").out) if row["queue"] == name]
    assert shown["fairness"] == {"separator": ":", "weights": {"acme": 3}}
    assert queen("policies", "set", name, "--key-leases", "5", "--key-rate", "20", "--key-burst", "9").status == 0
    [shown] = [row for row in json.loads(queen("policies", "--json").out) if row["queue"] == name]
    assert shown["limits"] == {"perKey": {"leases": 5, "rate": 20, "burst": 9}}
    assert "is not like acme=3" in queen("policies", "set", name, "--fair-by", ":", "--weight", "acme").err
    assert "--weight needs --fair-by" in queen("policies", "set", name, "--weight", "acme=3").err
    assert "burst needs a rate" in queen("policies", "set", name, "--leases", "1", "--burst", "3").err


# Timers


def test_timers_are_set_listed_and_cancelled(queen: Run, name: str) -> None:
    assert queen("timers", "set", name, "k", "{}", "--in", "1h").out.startswith("scheduled: k is pushed to")
    assert queen("timers", "set", name, "k", '{"n": 1}', "--cron", "0 9 * * *").out.startswith("rescheduled")
    assert "0 9 * * *" in queen("timers", "list", name).out
    assert queen("timers", "cancel", name, "k").out == "cancelled: k\n"
    again = queen("timers", "cancel", name, "k")
    assert again.status == 3
    assert "it was pushed or cancelled before" in again.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["{}"], "one of --in, --at and --cron"),
        (["{}", "--in", "1s", "--cron", "@daily"], "one of --in, --at and --cron"),
        (["{}", "--in", "soon"], "not a duration"),
        (["{", "--in", "1s"], "is not JSON"),
    ],
)
def test_a_timer_needs_one_moment_and_json(queen: Run, name: str, arguments: list[str], complaint: str) -> None:
    refused = queen("timers", "set", name, "k", *arguments)
    assert refused.status == 2
    assert complaint in refused.err


def test_the_variables_of_the_bundled_database(queen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no password is an argument of psql."""
    url = "postgresql://queen_server:a%27b%20c@127.0.0.1:5433/postgres"
    monkeypatch.setattr("queenmq.storage.embedded.running_url", lambda *_, **__: url)
    assert queen("db", "url").out == url + "\n"
    assert queen("db", "env").out.splitlines() == [
        "export PGHOST=127.0.0.1",
        "export PGPORT=5433",
        "export PGUSER=queen_server",
        """export PGPASSWORD='a'"'"'b c'""",
        "export PGDATABASE=postgres",
    ]


def test_a_schema_is_set_checked_shown_and_removed(queen: Run, name: str, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}')
    assert queen("schema", "set", name).status == 2
    assert queen("schema", "set", name, str(tmp_path / "none.json")).status == 1
    assert "does not exist" in queen("schema", "set", name, str(file)).err
    assert queen("queues", "create", name).status == 0
    done = queen("schema", "set", name, str(file), "--check")
    assert done.out == f"{name} has schema version 1 (backward); pushes are checked\n"
    assert "does not fit schema 1" in queen("push", name, '{"id": "one"}').err
    checked = queen("schema", "check", name, '{"id": "one"}', '{"id": 1}')
    assert (checked.status, checked.out.splitlines()[-1]) == (1, "1 of 2 payloads fit")
    file.write_text('{"type": "object", "properties": {"id": {"type": "string"}}}')
    assert "id (type or limits)" in queen("schema", "check", name, "--schema", str(file)).out
    assert "not backward compatible" in queen("schema", "set", name, str(file)).err
    assert queen("schema", "set", name, str(file), "--compatibility", "none", "--no-check").status == 0
    assert queen("schema", "show", name, "--version", "1").json["required"] == ["id"]
    assert [one["version"] for one in queen("schema", "show", name, "--versions", "--json").json] == [2, 1]
    assert name in queen("schema", "list").out
    assert queen("schema", "remove", name, "--yes").out == f"schema of {name} is removed\n"
    assert queen("schema", "show", name).status != 0


def test_a_filter_of_a_group(queen: Run, client: BlockingQueen, name: str) -> None:
    client.queue(name).push([Item(1, headers={"a": "b"}), Item(2)])
    assert queen("groups", "filter", name, "g").out == "g gets every message; 0 messages passed over\n"
    assert queen("groups", "filter", name, "g", "headers.a = 'b'").status == 0
    assert [message.data for message in client.queue(name).group("g").batch(2).pop()] == [1]
    assert queen("groups", "filter", name, "g", "--json").json["passedOver"] == 1
    assert "expected a field" in queen("groups", "filter", name, "g", "a = 'b'").err
    assert queen("groups", "filter", name, "g", "--remove").out == "g gets every message; 1 message passed over\n"


def test_a_group_gets_the_newest_only(queen: Run, client: BlockingQueen, name: str) -> None:
    newest = "only the newest message of each partition"
    client.queue(name).push([1, 2])
    assert queen("groups", "conflation", name, "g").out == "g gets every message; 0 messages passed over\n"
    assert queen("groups", "conflation", name, "g", "on").out == f"g gets {newest}; 0 messages passed over\n"
    assert [message.data for message in client.queue(name).group("g").batch(2).pop()] == [2]
    assert queen("groups", "conflation", name, "g", "--json").json["passedOver"] == 1
    assert queen("groups", "conflation", name, "g", "off").out == "g gets every message; 1 message passed over\n"


def test_keys_and_locks(queen: Run, client: BlockingQueen, name: str) -> None:
    assert queen("kv", "put", name, "order-1", '{"state": "held"}', "--ttl", "60").status == 0
    assert queen("kv", "put", name, "other", "1").status == 0
    assert queen("kv", "get", name, "order-1").out == '{"state": "held"}\n'
    assert queen("kv", "put", name, "other", "2", "--expect", "0").status == 3
    [one] = queen("kv", "list", name, "--prefix", "order-", "--json").json
    assert (one["key"], one["value"]) == ("order-1", {"state": "held"})
    [listed] = [one for one in queen("kv", "list", "--json").json if one["namespace"] == name]
    assert listed == {"namespace": name, "keys": 2, "more": False}
    assert queen("kv", "--prefix", name).out.split()[-2:] == [name, "2"], "what `queen kv` alone lists"
    assert queen("kv", "locks", "--prefix", name).err == "nobody holds a lock\n"
    client.keys.acquire(name, ttl=60, owner="office-7")
    [held] = queen("kv", "locks", "--prefix", name, "--json").json
    assert (held["name"], held["owner"], held["slot"]) == (name, "office-7", 0)
    assert "office-7" in queen("kv", "locks").out
    assert queen("kv", "delete", name, "other").status == 0


def test_counters(queen: Run, name: str) -> None:
    assert [queen("kv", "incr", name, "seen", *by).out for by in ((), ("5",), ("-2",))] == ["1\n", "6\n", "4\n"]
    assert queen("kv", "incr", name, "seen", "--most", "4").status == 3
    refused = queen("kv", "incr", name, "seen", "-9", "--least", "0")
    assert (refused.status, refused.out, refused.err) == (3, "", "queen: nothing was changed: limit\n")
    assert queen("kv", "get", name, "seen").out == "4\n"
    counted = queen("kv", "incr", name, "briefly", "--ttl", "60", "--json").json
    assert (counted["applied"], counted["value"], counted["expiresAt"] is not None) == (True, 1, True)
    queen("kv", "put", name, "text", '"a"')
    assert queen("kv", "incr", name, "text").err == "queen: nothing was changed: type\n"
    assert queen("kv", "incr", name, "seen", "much").status == 2
    assert queen("kv", "incr", name, "seen", "--mots", "4").status == 2
