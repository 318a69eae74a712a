"""Messages in and out: push, pop, ack, tail, messages."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ports import free_port
from server_settings import settings_with

from cli.conftest import PATIENCE_S, Run, Running, serving, spawned
from queenmq.client import BlockingQueen, Item

if TYPE_CHECKING:
    from conftest import Postgres


def payloads(client: BlockingQueen, queue: str, partition: str | None = None) -> list[object]:
    sentence = client.queue(queue).group("check").batch(1000).partitions(100).wait(False)
    if partition is not None:
        sentence.partition(partition)
    return [message.data for message in sentence.pop()]


# Push


def test_push_from_the_command_line(queen: Run, client: BlockingQueen, name: str) -> None:
    done = queen("push", name, '{"id": 1}', '"two"', "3", "--partition", "customer-7")
    assert (done.status, done.out) == (0, f"3 messages pushed to {name}\n")
    assert payloads(client, name, "customer-7") == [{"id": 1}, "two", 3]


def test_the_short_forms(queen: Run, name: str, tmp_path: Path) -> None:
    file = tmp_path / "one.ndjson"
    file.write_text("1\n")
    assert queen("push", name, "-f", str(file), "-p", "eu").status == 0
    assert queen("pop", name, "-g", "short", "-p", "eu", "--ack").status == 0
    assert queen("seek", name, "-g", "short", "-p", "eu", "--to", "beginning", "-y").status == 0
    assert queen("pop", name, "-g", "short", "--ack").status == 0


def test_push_keeps_the_payload_to_the_byte(queen: Run, client: BlockingQueen, name: str) -> None:
    payload = '{"price": 1.50, "id": 123456789012345678901234567890, "ü": "\\u00fc"}'
    queen("push", name, payload)
    assert queen("tail", name, "--seconds", "0.01", "--json").out.strip().endswith(f'"data": {payload}}}')
    assert queen("pop", name, "--json").out.strip().endswith(f'"data": {payload}}}')


def test_push_twice_under_one_transaction_id(queen: Run, name: str) -> None:
    assert queen("push", name, "1", "--transaction-id", "t").out == f"1 message pushed to {name}\n"
    assert "1 message had been pushed before" in queen("push", name, "1", "--transaction-id", "t").out
    [result] = queen("push", name, "1", "--transaction-id", "t", "--json").json
    assert (result["transactionId"], result["status"]) == ("t", "duplicate")


def test_push_later(queen: Run, client: BlockingQueen, name: str) -> None:
    later = queen("push", name, "1", "2", "--delay", "1h", "--partition", "p")
    assert (later.status, later.out) == (0, f"2 messages to be pushed later (`queen timers list {name}`)\n")
    assert queen("push", name, "--deliver-at", "2100-01-02T03:04:05", stdin="3\n").status == 0
    [result] = queen("push", name, "4", "--deliver-at", "2100-01-02T03:04:05Z", "--transaction-id", "t", "--json").json
    assert (result["status"], result["timerKey"], result["deliverAt"]) == (
        "scheduled",
        "push:Default:t",
        "2100-01-02T03:04:05.000Z",
    )
    timers = client.queue(name).timers()
    assert len(timers) == 4
    assert sum(timer.deliver_at == "2100-01-02T03:04:05.000Z" for timer in timers) == 2
    assert client.queue(name).cancel("push:Default:t").status == "cancelled"
    assert queen("push", name, "5", "--delay", "10ms").status == 0
    assert client.queue(name).wait(True).timeout_millis(30_000).pop()[0].data == 5


def test_push_of_plain_text(queen: Run, client: BlockingQueen, name: str) -> None:
    assert queen("push", name, "--text", "hello world").status == 0
    assert payloads(client, name) == ["hello world"]


def test_push_of_a_file_in_batches_and_again(queen: Run, client: BlockingQueen, name: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.ndjson"
    file.write_text("".join(f'{{"n": {n}}}\n\n' for n in range(25)))
    done = queen("push", name, "--file", str(file), "--batch", "10", "--once", "import-1")
    assert (done.status, done.out) == (0, f"25 messages pushed to {name}\n")
    again = queen("push", name, "--file", str(file), "--batch", "10", "--once", "import-1", "--json").json
    assert (again["lines"], again["queued"], again["duplicate"]) == (25, 0, 25)
    assert payloads(client, name) == [{"n": n} for n in range(25)]


def test_push_from_standard_input(queen: Run, client: BlockingQueen, name: str) -> None:
    assert queen("push", name, stdin='1\n"zwölf"\n').status == 0
    assert queen("push", name, "--file", "-", stdin="3").status == 0
    assert payloads(client, name) == [1, "zwölf", 3]


def test_messages_go_from_queue_to_queue(queen: Run, client: BlockingQueen, name: str) -> None:
    for partition in "ab":
        queen("push", name, f'"{partition}1"', f'"{partition}2"', "--partition", partition)
    told = queen("tail", name, "--seconds", "0.01", "--json")
    assert queen("push", f"{name}-copy", "--messages", stdin=told.out).out == f"4 messages pushed to {name}-copy\n"
    assert payloads(client, f"{name}-copy", "a") == ["a1", "a2"]
    assert payloads(client, f"{name}-copy", "b") == ["b1", "b2"]
    assert "had been pushed before" in queen("push", f"{name}-copy", "--messages", stdin=told.out).out


def test_headers_are_pushed_found_shown_and_copied(queen: Run, name: str) -> None:
    queen("push", name, '"a"', "--header", "type=parcel", "--header", "note=a=b", "--transaction-id", "a")
    queen("push", name, '"b"')
    headers = {"type": "parcel", "note": "a=b"}
    [found] = queen("messages", "--queue", name, "--header", "type:parcel", "--json").json
    assert (found["transactionId"], found["headers"]) == ("a", headers)
    assert '"parcel"' in queen("messages", "show", f"{name}/Default", "a").out
    [first, second] = queen("messages", "read", f"{name}/Default", "--json").json
    assert (first["headers"], second["headers"]) == (headers, {})
    told = queen("tail", name, "--seconds", "0.01", "--json")
    queen("push", f"{name}-copy", "--messages", stdin=told.out)
    popped = [json.loads(line) for line in queen("pop", f"{name}-copy", "--batch", "2", "--json").out.splitlines()]
    assert sorted(message.get("headers", {}).get("type", "") for message in popped) == ["", "parcel"]
    queen("timers", "set", name, "k", "1", "--in", "1h", "--header", "type=letter")
    assert queen("timers", "list", name, "--json").json[0]["headers"] == {"type": "letter"}


def test_a_message_says_how_its_deliveries_failed_and_for_whom(queen: Run, client: BlockingQueen, name: str) -> None:
    queen("push", name, '"a"', "--transaction-id", "a")
    [message] = client.queue(name).group("g").pop()
    host = f"{socket.gethostname()} (process {os.getpid()})"
    held = queen("explain", name, "--group", "g").out
    assert "The lease is held by " in held
    assert host in held
    assert host in queen("groups", "consumers", name, "--group", "g").out
    assert queen("groups", "consumers", name, "--json").json["consumers"][0]["leases"] == 1
    client.ack(message, "failed", error="the card was declined")
    told = queen("messages", "show", f"{name}/Default", "a").out
    assert "failed: the card was declined" in told
    assert host in told
    assert queen("groups", "--queue", name, "--only", "failing", "--sort", "failing", "--json").json[0]["failing"] == 1
    assert "the card was declined" in queen("partitions", name, "--state", "failing").out
    assert "no partition is in the state dead_letters" in queen("partitions", name, "--state", "dead_letters").err
    assert queen("partitions", "--state", "failing").status == 2
    assert queen("queues", "--search", name, "--sort", "lag", "--json").json[0]["name"] == name
    assert name in queen("find", name).out
    assert queen("find", "a", "--json").json["messages"][0]["transactionId"].startswith("a")
    nothing = queen("find", "no-such-thing-at-all")
    assert (nothing.status, "nothing was found" in nothing.err) == (3, True)
    assert "Last failure: failed: the card was declined (" in queen("explain", name, "--group", "g").out
    assert "nobody has popped" in queen("groups", "consumers", name, "--group", "nobody").err


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [
        (["{id}"], "", "'{id}' is not JSON"),
        (["NaN"], "", "is not JSON"),
        (["1", "--file", "x"], "", "not both"),
        (["1", "2", "--transaction-id", "t"], "", "with one message only"),
        (["--file", "/nowhere/at/all"], "", "cannot be read"),
        ([], "1\n{\n", "line 2 of standard input is not JSON"),
        (["--messages"], "[1]", "line 1 of standard input is not a message"),
        (["--messages"], '{"partition": "p"}', "line 1 of standard input has no data"),
        (["--batch", "0"], "1", "not a whole number above 0"),
        (["--text"], "1", "given as arguments"),
        (["1", "--delay", "soon"], "", "is not a duration"),
        (["1", "--delay", "1h", "--deliver-at", "2100-01-02"], "", "not with both"),
    ],
)
def test_push_refuses(
    queen: Run, client: BlockingQueen, name: str, arguments: list[str], stdin: str, told: str
) -> None:
    refused = queen("push", name, *arguments, stdin=stdin)
    assert refused.status == 2
    assert told in refused.err
    assert refused.out == ""
    assert queen("queues", "show", name).status == 3


def test_what_the_server_refuses_is_a_sentence(queen: Run, name: str) -> None:
    refused = queen("push", "q" * 300, "1")
    assert (refused.status, len(refused.err.splitlines())) == (1, 1)
    assert "255" in refused.err
    queen("queues", "create", name, "--option", "maxSize=1")
    full = queen("push", name, stdin="1\n2\n3\n")
    assert full.status == 1
    assert "--once" in full.err


def test_a_push_that_was_interrupted_goes_on_without_doubling(
    running: Running, client: BlockingQueen, name: str, tmp_path: Path
) -> None:
    """The sentence has the name under which the same file goes on."""
    reader, writer = os.pipe()
    pushing = spawned(
        "push",
        name,
        "--file",
        "-",
        "--batch",
        "1",
        url=running.url,
        folder=tmp_path,
        stdin=reader,
        stderr=subprocess.PIPE,
    )
    os.close(reader)
    os.write(writer, b"1\n2\n3\n")
    with BlockingQueen(running.url) as watching:
        seen: list[object] = []
        sentence = watching.queue(name).group("watch").batch(10).commit_on_delivery()
        while len(seen) < 2:
            seen += [message.data for message in sentence.timeout_millis(int(PATIENCE_S * 1000)).pop()]
    pushing.send_signal(signal.SIGINT)
    _, err = pushing.communicate(timeout=PATIENCE_S)
    os.close(writer)
    assert pushing.returncode == 130
    once = err.decode().split("--once ")[1].split()[0]
    again = spawned("push", name, "--once", once, url=running.url, folder=tmp_path, stdin=subprocess.PIPE)
    again.communicate(b"1\n2\n3\n4\n", timeout=PATIENCE_S)
    assert payloads(client, name) == [1, 2, 3, 4]


# Pop and ack


def test_pop_and_acknowledge(queen: Run, name: str) -> None:
    queen("push", name, '{"id": 1}', '{"id": 2}', "--partition", "customer-7")
    first = queen("pop", name, "--group", "billing", "--ack")
    assert first.status == 0
    assert first.out.count("\n") == 1
    assert "customer-7" in first.out
    assert '{"id": 1}' in first.out
    [second] = queen("pop", name, "--group", "billing", "--ack", "--json").lines
    assert (second["data"], second["consumerGroup"], second["partition"]) == ({"id": 2}, "billing", "customer-7")
    nothing = queen("pop", name, "--group", "billing")
    assert (nothing.status, nothing.out) == (4, "")
    assert f"queen explain {name} --group billing" in nothing.err


def test_pop_from_a_partition(queen: Run, name: str) -> None:
    queen("push", name, "1", "--partition", "eu")
    missing = queen("pop", name, "--partition", "us")
    assert (missing.status, missing.err) == (
        3,
        f"queen: {name} has no partition 'us'; `queen partitions {name}` lists them\n",
    )
    assert queen("pop", name, "--partition", "eu", "--ack").status == 0
    empty = queen("pop", name, "--partition", "eu")
    assert empty.status == 4
    assert f"`queen explain {name} --partition eu`" in empty.err


def test_pop_leases_and_tells_how_to_acknowledge(queen: Run, name: str) -> None:
    queen("push", name, "1")
    popped = queen("pop", name, "--group", "g")
    assert queen("pop", name, "--group", "g").status == 4
    command = popped.err.split("queen ack ")[1].split()
    assert queen("ack", *command).out == "1 message acknowledged as completed\n"
    late = queen("ack", *command)
    assert late.status == 1
    assert "refused" in late.err


def test_what_was_popped_is_acknowledged_from_a_file(queen: Run, name: str, tmp_path: Path) -> None:
    queen("push", name, stdin="1\n2\n3\n")
    file = tmp_path / "popped.ndjson"
    file.write_text(queen("pop", name, "--batch", "2", "--group", "g", "--json").out)
    results = queen("ack", "--file", str(file), "--json").json
    assert [result["success"] for result in results] == [True, True]
    third = queen("pop", name, "--group", "g", "--json").out
    assert queen("ack", "--file", "-", "--status", "dlq", "--error", "no good", stdin=third).status == 0
    [letter] = queen("dlq", "list", name, "--json").json["messages"]
    assert (letter["data"], letter["errorMessage"]) == (3, "no good")


def test_pop_waits(queen: Run, client: BlockingQueen, name: str) -> None:
    client.queue(name).create()
    pushing = threading.Timer(0.2, lambda: client.queue(name).push("late"))
    pushing.start()
    try:
        assert '"late"' in queen("pop", name, "--wait", str(PATIENCE_S)).out
    finally:
        pushing.join()


def test_a_new_group_may_start_now(queen: Run, name: str) -> None:
    queen("push", name, "1")
    assert queen("pop", name, "--group", "late", "--from-now").status == 4
    queen("push", name, "2")
    assert queen("pop", name, "--group", "late", "--json").lines[0]["data"] == 2


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [
        ([], "", "PARTITION_ID and TRANSACTION_ID, or --file"),
        (["only-one"], "", "PARTITION_ID and TRANSACTION_ID, or --file"),
        (["--file", "/nowhere/at/all"], "", "cannot be read"),
        (["--file", "-"], "{", "line 1 of standard input is not JSON"),
        (["--file", "-"], "{}", "no partitionId"),
        (["--file", "-", "--status", "great"], "{}", "--status"),
    ],
)
def test_ack_refuses(queen: Run, arguments: list[str], stdin: str, told: str) -> None:
    refused = queen("ack", *arguments, stdin=stdin)
    assert refused.status == 2
    assert told in refused.err


# Tail


def test_tail_follows_without_a_trace(
    running: Running, queen: Run, client: BlockingQueen, name: str, tmp_path: Path
) -> None:
    client.queue(name).push([f"old {n}" for n in range(20)])
    following = spawned(
        "tail",
        name,
        "--last",
        "2",
        "--every",
        "0.05",
        "--json",
        url=running.url,
        folder=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert following.stdout is not None
    shown = [json.loads(following.stdout.readline())["data"] for _ in range(2)]
    for n in range(3):
        client.queue(name).partition(f"p{n}").push([f"new {n}", f"newer {n}"])
        shown += [json.loads(following.stdout.readline())["data"] for _ in range(2)]
    following.send_signal(signal.SIGINT)
    rest, _ = following.communicate(timeout=PATIENCE_S)
    assert (following.returncode, rest) == (0, b"")
    assert shown == ["old 18", "old 19", *(f"{word} {n}" for n in range(3) for word in ("new", "newer"))]
    assert queen("groups", "--queue", name, "--json").json == []


def test_tail_of_one_partition_ends_when_it_is_told_to(queen: Run, name: str) -> None:
    for partition in "ab":
        queen("push", name, "1", "2", "3", "--partition", partition)
    told = queen("tail", name, "--partition", "b", "--limit", "2")
    assert told.status == 0
    assert [line.split()[1:4:2] for line in told.out.splitlines()] == [["b", "1"], ["b", "2"]]
    assert queen("tail", name, "--last", "0", "--seconds", "0.05", "--every", "0.01").out == ""


def test_tail_refuses(queen: Run, name: str) -> None:
    assert "there is no queue" in queen("tail", name).err
    assert queen("tail", name).status == 3
    assert queen("tail", name, "--last", "1001").status == 2


def test_names_do_nothing_to_the_terminal(queen: Run, client: BlockingQueen, name: str) -> None:
    evil = "\x1b[2J\x07\n\u202e"
    client.queue(name).partition(evil).push(Item({"e": evil}, transaction_id=f"t{evil}"))
    bury = client.queue(name).group(f"g{evil}").pop()
    client.ack(bury, "dlq", error=f"bad{evil}")
    for arguments in (
        ["tail", name, "--limit", "1"],
        ["pop", name],
        ["messages", "--queue", name, "--payload"],
        ["partitions", name],
        ["groups", "--queue", name],
        ["dlq", "list", name],
        ["explain", name, "--group", f"g{evil}"],
        ["explain", name, "--group", evil],
        ["queues", "show", evil],
    ):
        told = queen(*arguments)
        assert not set("\x1b\x07\u202e") & set(told.out + told.err), arguments
    assert queen("messages", "--queue", name, "--payload", "--json").json[0]["payload"] == {"e": evil}


def test_whoever_reads_may_stop_reading(running: Running, client: BlockingQueen, name: str, tmp_path: Path) -> None:
    client.queue(name).push(list(range(1000)))
    reader, writer = os.pipe()
    os.close(reader)
    telling = spawned(
        *("tail", name, "--last", "1000", "--json"),
        url=running.url,
        folder=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    _, err = telling.communicate(timeout=PATIENCE_S)
    assert (telling.returncode, err) == (1, b"")


# Looking at messages


def test_messages_are_listed_and_shown(queen: Run, name: str) -> None:
    queen("push", name, '{"n": [1]}', "--partition", "eu", "--transaction-id", "t-1")
    queen("pop", name, "--group", "g", "--ack")
    [listed] = queen("messages", "--queue", name, "--payload", "--json").json
    assert (listed["transactionId"], listed["status"], listed["payload"]) == ("t-1", "completed", {"n": [1]})
    table = queen("messages", "--queue", name).out
    assert queen("messages", "list", name).out == table
    assert "two queues are named" in queen("messages", "list", name, "--queue", "other").err
    assert "t-1" in table
    assert "completed" in table
    shown = queen("messages", "show", f"{name}/eu", "t-1")
    assert '{"n": [1]}' in shown.out
    assert "g: done" in shown.out
    assert queen("messages", "show", listed["partitionId"], "t-1", "--json").json["payload"] == {"n": [1]}
    assert "no such messages" in queen("messages", "--queue", name, "--status", "pending").err
    assert queen("messages", "--queue", name, "--until", "2020-01-01", "--json").json == []


def test_a_dead_letter_is_told_with_all_its_attempts(queen: Run, client: BlockingQueen, name: str) -> None:
    queen("queues", "create", name, "retryLimit=1", "retryDelay=0")
    queen("push", name, "1", "--transaction-id", "t")
    for _ in range(2):
        [message] = client.queue(name).group("g").pop()
        assert "g: leased" in queen("messages", "show", f"{name}/Default", "t").out
        client.ack(message, "failed", error="no")
    shown = queen("messages", "show", f"{name}/Default", "t").out
    assert "g: dead letter, 2 attempts failed" in shown
    assert re.search(r"attempts failed +2\b", shown)


def test_a_message_is_buried_retried_and_deleted(queen: Run, name: str) -> None:
    queen("push", name, "1", "--transaction-id", "t")
    queen("pop", name, "--group", "g")
    place = f"{name}/Default"
    assert queen("messages", "bury", place, "t").out == "Message moved to the dead letters\n"
    assert queen("messages", "retry", place, "t").out == "Message will be delivered again\n"
    assert queen("messages", "retry", place, "t").status == 3
    assert queen("messages", "delete", place, "t").status == 2
    assert queen("messages", "delete", place, "t", "--yes").out == "Message deleted\n"
    assert queen("messages", "delete", place, "t", "--yes").status == 3


@pytest.mark.parametrize(
    ("place", "status", "told"),
    [
        ("nothing", 2, "neither queue/partition"),
        ("no/Default", 3, "there is no queue 'no'"),
        ("{}/no", 3, "no partition 'no'"),
    ],
)
def test_messages_of_places_that_are_not_there(queen: Run, name: str, place: str, status: int, told: str) -> None:
    queen("push", name, "1")
    for verb in ("show", "retry", "bury", "delete"):
        refused = queen("messages", verb, place.format(name), "t")
        assert (refused.status, told in refused.err) == (status, True)


# Servers that are not there


@pytest.mark.parametrize(
    "arguments",
    [
        ["push", "q", "1"],
        ["pop", "q"],
        ["tail", "q"],
        ["queues"],
        ["dlq"],
        ["top", "--once"],
        ["explain", "q"],
        ["seek", "q", "--group", "g", "--to", "end"],
    ],
    ids=" ".join,
)
def test_no_server(queen: Run, arguments: list[str]) -> None:
    refused = queen(*arguments, "--server", f"http://127.0.0.1:{free_port()}")
    assert (refused.status, refused.out, len(refused.err.splitlines())) == (6, "", 1)
    assert "queen serve" in refused.err


def test_the_next_server_is_used(queen: Run, running: Running, name: str) -> None:
    both = f"http://127.0.0.1:{free_port()},{running.url}/"
    assert queen("push", name, "1", "--server", both).status == 0


def test_a_server_that_does_not_speak_https(queen: Run, running: Running) -> None:
    refused = queen("queues", "--server", running.url.replace("http:", "https:"))
    assert (refused.status, len(refused.err.splitlines())) == (6, 1)
    assert "TLS failed" in refused.err


def test_a_path_that_is_not_the_servers(queen: Run, running: Running) -> None:
    refused = queen("queues", "--server", f"{running.url}/nowhere")
    assert (refused.status, len(refused.err.splitlines())) == (6, 1)
    assert "is not the URL of a Queen server" in refused.err


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://host", "http://me:secret@host", "http://", "", "http://host:99999", "host:6632"]
)
def test_what_is_no_url(queen: Run, url: str) -> None:
    refused = queen("queues", "--server", url)
    assert (refused.status, len(refused.err.splitlines())) == (2, 1)
    assert "secret" not in refused.err


@pytest.mark.parametrize("shown", ["", "true"])
def test_a_defect_is_a_sentence_unless_its_place_is_asked_for(
    queen: Run, environment: pytest.MonkeyPatch, shown: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    environment.setattr("queenmq.cli.commands.queues.listing", broken)
    environment.setenv("QUEEN_TRACEBACK", shown)
    if shown:
        with pytest.raises(ZeroDivisionError):
            queen("queues")
    else:
        told = queen("queues")
        assert (told.status, len(told.err.splitlines())) == (1, 1)
        assert "ZeroDivisionError: nobody thought of it" in told.err


def test_tail_shows_payloads_that_a_listing_leaves_out(
    queen: Run, postgres: Postgres, environment: pytest.MonkeyPatch
) -> None:
    url = asyncio.run(postgres.create())
    try:
        with serving(settings_with(limits={"max_answer_bytes": 1000}), url) as server:
            environment.setenv("QUEEN_URL", server.url)
            for letter in "abc":
                queen("push", "large", f'"{letter * 800}"')
            told = queen("tail", "large", "--last", "3", "--limit", "3")
            assert [line.split()[-1] for line in told.out.splitlines()] == [f'"{letter * 800}"' for letter in "abc"]
            listed = queen("messages", "--queue", "large", "--payload")
            assert "left out" in listed.err
    finally:
        asyncio.run(postgres.drop(url))
