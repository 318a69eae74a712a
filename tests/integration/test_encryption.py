"""Encryption at rest: nothing readable is stored, everything comes back as it was."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import asyncpg
import pytest
from cluster.processes import QUEEN, environment
from server_settings import changed, settings_with
from unit.test_encryption import unbound

from integration.queen import Queen, another_server, data, leases, push_op
from integration.test_timers import change, schedule
from queenmq.config import Settings
from queenmq.core.encryption import fingerprint

SECRET = {"card": "4111-1111-1111-1111"}


@pytest.fixture
def settings() -> Settings:
    return settings_with(server={"encryption_key": bytes(range(32))})


@pytest.fixture
def keyless(settings: Settings) -> Settings:
    return changed(settings, server={"encryption_key": None})


async def payloads(sql: asyncpg.Connection, table: str = "messages") -> list[tuple[bool, bytes]]:
    rows = await sql.fetch(f"SELECT is_encrypted, payload FROM queen.{table} ORDER BY created_at")
    return [(row["is_encrypted"], row["payload"]) for row in rows]


async def test_nothing_readable_is_stored_and_the_payload_comes_back(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", SECRET)
    [(is_encrypted, stored)] = await payloads(sql)
    assert is_encrypted
    assert b"4111" not in stored
    assert json.loads(stored).keys() == {"key", "encrypted", "iv", "authTag"}
    assert data(await queen.pop("secret")) == [SECRET]


async def test_plain_messages_before_and_after_come_in_their_order(queen: Queen) -> None:
    for number, enabled in enumerate((False, True, False)):
        await queen.configure("mixed", encryptionEnabled=enabled)
        await queen.push_items({"queue": "mixed", "transactionId": f't"{number}', "payload": {"n": number}})
    messages = await queen.pop("mixed", batch=10)
    assert [(message["transactionId"], message["data"]) for message in messages] == [
        (f't"{number}', {"n": number}) for number in range(3)
    ]
    assert messages[0].keys() == messages[1].keys()


async def test_equal_payloads_are_stored_differently(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", SECRET, SECRET)
    assert len(set(await payloads(sql))) == 2


async def test_the_payload_is_the_same_byte_for_byte(queen: Queen) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    texts = ("null", "1e400", '{"a":1,"a":2}', '"\\u0000ü"', "[" + "1," * 100_000 + "1]")
    for text in texts:
        body = f'{{"items":[{{"queue":"secret","payload":{text}}}]}}'
        assert (await queen.http.post("/api/v1/push", content=body.encode())).status_code == 201
        popped = await queen.http.get("/api/v1/pop/queue/secret?autoAck=true")
        assert f'"data":{text},'.encode() in popped.content


async def test_a_transaction_encrypts_too(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    assert (await queen.transact(push_op("secret", SECRET), push_op("plain", "open")))["success"]
    assert sorted(is_encrypted for is_encrypted, _ in await payloads(sql)) == [False, True]
    assert data(await queen.pop("secret")) == [SECRET]
    assert data(await queen.pop("plain")) == ["open"]


async def test_dead_letters_stay_encrypted_and_are_listed_readable(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", SECRET)
    [message] = await queen.pop("secret")
    await queen.ack(message, "dlq")
    [(is_encrypted, stored)] = await payloads(sql, "dead_letter_queue")
    assert is_encrypted
    assert b"4111" not in stored
    assert data(await queen.dead_letters("secret")) == [SECRET]


async def test_a_payload_that_looks_encrypted_is_left_alone(queen: Queen) -> None:
    lookalike = {"encrypted": "abc", "iv": "def", "authTag": "ghi"}
    await queen.configure("secret", encryptionEnabled=True)
    for queue in ("plain", "secret"):
        await queen.push(queue, lookalike)
        [message] = await queen.pop(queue)
        assert message["data"] == lookalike
        await queen.ack(message, "dlq")
        assert data(await queen.dead_letters(queue)) == [lookalike]


async def test_keys_are_unique_in_an_encrypted_queue_too(queen: Queen) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    results = [*await queen.push("secret", "t", "t"), *await queen.push("secret", "t")]
    assert [result["status"] for result in results] == ["queued", "duplicate", "duplicate"]


async def test_switching_it_off_leaves_old_messages_readable(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", "sealed")
    await queen.configure("secret")
    await queen.push("secret", "open")
    assert [is_encrypted for is_encrypted, _ in await payloads(sql)] == [True, False]
    assert data(await queen.drain("secret")) == ["sealed", "open"]


async def test_a_row_that_psql_inserted_in_clear_is_delivered(queen: Queen, sql: asyncpg.Connection) -> None:
    partition_id = (await queen.configure("secret", encryptionEnabled=True))["partitionId"]
    await sql.execute("INSERT INTO queen.messages (partition_id, payload) VALUES ($1, '{}')", partition_id)
    assert data(await queen.pop("secret")) == [{}]


async def test_a_server_that_does_not_know_of_it_encrypts_all_the_same(
    queen: Queen, sql: asyncpg.Connection, settings: Settings, database_url: str
) -> None:
    async with another_server(settings, database_url) as other:
        await other.push("pushed", "warm up")
        await other.push("transacted", "warm up")
        for queue in ("pushed", "transacted"):
            await queen.drain(queue)
            await sql.execute("DELETE FROM queen.messages")
            await queen.configure(queue, encryptionEnabled=True)
        await asyncio.gather(
            other.push("pushed", SECRET), other.transact(push_op("transacted", SECRET)), other.push("plain", "open")
        )
        for queue in ("pushed", "transacted"):
            assert data(await queen.pop(queue)) == [SECRET]
    secret = "SELECT count(*) FROM queen.messages WHERE position('4111' IN encode(payload, 'escape')) > 0"
    assert await sql.fetchval(secret) == 0
    assert sorted(is_encrypted for is_encrypted, _ in await payloads(sql)) == [False, True, True]


class TestWithoutTheKey:
    async def test_the_configuration_is_refused(self, keyless: Settings, database_url: str) -> None:
        async with another_server(keyless, database_url) as without:
            refusal = await without.refused(
                "/api/v1/configure", {"queue": "secret", "options": {"encryptionEnabled": True}}
            )
            assert "QUEEN_ENCRYPTION_KEY" in refusal["error"]

    async def test_nothing_is_stored_in_clear(
        self, queen: Queen, sql: asyncpg.Connection, keyless: Settings, database_url: str
    ) -> None:
        await queen.configure("secret", encryptionEnabled=True)
        async with another_server(keyless, database_url) as without:
            for _ in range(2):
                answer = await without.http.post("/api/v1/push", json={"items": [{"queue": "secret"}]})
                assert answer.status_code >= 400
                assert "QUEEN_ENCRYPTION_KEY" in answer.json()["error"]
            operation = push_op("secret", SECRET)
            answer = await without.http.post("/api/v1/transaction", json={"operations": [operation]})
            assert answer.json().get("success") is not True
        assert await payloads(sql) == []

    async def test_a_pop_keeps_no_lease(
        self, queen: Queen, sql: asyncpg.Connection, keyless: Settings, database_url: str
    ) -> None:
        await queen.configure("secret", encryptionEnabled=True)
        await queen.push("secret", SECRET)
        async with another_server(keyless, database_url) as without:
            assert (await without.http.get("/api/v1/pop/queue/secret")).status_code >= 400
        assert data(await queen.wait("secret")) == [SECRET]
        assert await leases(sql) == 1

    async def test_dead_letters_are_listed_without_what_cannot_be_read(
        self, queen: Queen, keyless: Settings, database_url: str
    ) -> None:
        await queen.configure("secret", encryptionEnabled=True)
        for name in ("secret", "plain"):
            await queen.push(name, SECRET)
            [message] = await queen.pop(name)
            await queen.ack(message, status="dlq")
        async with another_server(keyless, database_url) as without:
            letters = (await without.http.get("/api/v1/dlq")).json()["messages"]
        shown = {letter["queue"]: (letter["data"], letter["undecryptable"]) for letter in letters}
        assert shown == {"secret": (None, True), "plain": (SECRET, False)}

    async def test_pushes_to_other_queues_are_not_harmed(
        self, queen: Queen, keyless: Settings, database_url: str
    ) -> None:
        await queen.configure("secret", encryptionEnabled=True)
        async with another_server(keyless, database_url) as without:
            good = [without.http.post("/api/v1/push", json={"items": [{"queue": "plain"}]}) for _ in range(10)]
            bad = [without.http.post("/api/v1/push", json={"items": [{"queue": "secret"}]}) for _ in range(10)]
            pairs = [call for pair in zip(good, bad, strict=True) for call in pair]
            answers = await asyncio.gather(*pairs)
        assert {answer.status_code for answer in answers[::2]} == {201}


async def test_another_key_opens_nothing_and_keeps_no_lease(
    queen: Queen, settings: Settings, database_url: str
) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", SECRET)
    async with another_server(changed(settings, server={"encryption_key": bytes(32)}), database_url) as other:
        answer = await other.http.get("/api/v1/pop/queue/secret")
        assert answer.status_code >= 400
        assert b"4111" not in answer.content
    assert data(await queen.wait("secret")) == [SECRET]


# Bound to their message

SWAP = """
    UPDATE queen.messages m SET payload = o.payload FROM queen.messages o
    WHERE o.partition_id <> m.partition_id OR o."offset" <> m."offset"
"""


@pytest.mark.parametrize("partitions", [("p", "p"), ("p", "other")], ids=["one partition", "two partitions"])
async def test_swapped_payloads_are_noticed(queen: Queen, sql: asyncpg.Connection, partitions: tuple[str, str]) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    for number, partition in enumerate(partitions):
        await queen.push("secret", {"account": number}, partition=partition)
    assert await sql.execute(SWAP) == "UPDATE 2"
    for partition in set(partitions):
        answer = await queen.http.get(f"/api/v1/pop/queue/secret/partition/{partition}")
        assert answer.status_code >= 400
        assert b"account" not in answer.content
    listed = (await queen.http.get("/api/v1/messages", params={"queue": "secret", "payloads": "true"})).json()
    assert all(message.get("data") is None for message in listed["messages"])
    await sql.execute(SWAP)
    assert sorted(message["account"] for message in data(await queen.drain("secret"))) == [0, 1]


async def test_redriven_messages_can_be_read(queen: Queen, sql: asyncpg.Connection) -> None:
    """A message that is not stored any more gets a new id, and keeps what its payload is bound to."""
    await queen.configure("secret", encryptionEnabled=True)
    for way in ("redrive", "retry"):
        await queen.push("secret", {"way": way})
        [message] = await queen.pop("secret")
        await queen.ack(message, "dlq")
        await sql.execute("DELETE FROM queen.messages")
        if way == "redrive":
            answer = await queen.http.post("/api/v1/dlq/redrive", json={"queue": "secret"})
        else:
            key = f"{message['partitionId']}/{message['transactionId']}"
            answer = await queen.http.post(f"/api/v1/messages/{key}/retry")
        assert answer.status_code == 200, answer.text
        [back] = await queen.pop("secret")
        assert (back["data"], back["id"] != message["id"]) == ({"way": way}, True)
        await queen.ack(back, "completed")


async def test_messages_from_before_are_read(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", SECRET)
    await sql.execute("UPDATE queen.messages SET payload = $1", unbound(bytes(range(32)), b'"old"'))
    assert data(await queen.pop("secret")) == ["old"]


# Several keys

NEW = bytes(range(100, 132))


def rotated(settings: Settings) -> Settings:
    return changed(settings, server={"encryption_key": NEW, "encryption_keys_previous": (bytes(range(32)),)})


async def test_a_key_can_be_changed_while_messages_are_there(
    queen: Queen, sql: asyncpg.Connection, settings: Settings, database_url: str
) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    await queen.push("secret", "old")
    async with another_server(rotated(settings), database_url) as other:
        await other.push("secret", "new")
        stored = [json.loads(payload)["key"] for _, payload in await payloads(sql)]
        assert stored == [fingerprint(bytes(range(32))), fingerprint(NEW)]
        assert data(await other.drain("secret")) == ["old", "new"]


async def test_reencryption(queen: Queen, sql: asyncpg.Connection, settings: Settings, database_url: str) -> None:
    await queen.configure("secret", encryptionEnabled=True)
    for number in range(30):
        await queen.push("secret", number, partition=str(number % 4))
        await queen.push("plain", number)
    [message] = await queen.pop("secret", partition="0")
    await queen.ack(message, "dlq")
    hour = {"queue": "secret", "partition": "late"}
    await change(queen.http, schedule("once", "once", delayMs=3_600_000, **hour))
    await change(queen.http, schedule("again", "again", schedule="@every 1h", **hour))
    [pushed] = await queen.push("secret", 0)
    older = unbound(bytes(range(32)), b'"from before"')
    await sql.execute(
        "UPDATE queen.messages SET payload = $1 WHERE transaction_id = $2", older, pushed["transactionId"]
    )
    order = 'SELECT array_agg(transaction_id ORDER BY partition_id, "offset") FROM queen.messages'
    before = await sql.fetchval(order)

    async def run(*arguments: str, previous: str = bytes(range(32)).hex()) -> tuple[int, str]:
        keys = {"QUEEN_ENCRYPTION_KEY": NEW.hex(), "QUEEN_ENCRYPTION_KEYS_PREVIOUS": previous}
        command = [sys.executable, "-c", QUEEN, "admin", "reencrypt", "--step", "7", *arguments]
        ran = await asyncio.to_thread(
            subprocess.run, command, env=environment(DATABASE_URL=database_url, **keys), capture_output=True, text=True
        )
        return ran.returncode, ran.stdout + ran.stderr

    status, told = await run(previous="")
    assert status == 1
    assert "not decrypted: 24 more" in told
    status, told = await run()
    anew = "examined: {}; encrypted anew: {} messages, {} dead letters, {} timers, 0 queued pushes\n"
    again = "examined again: {}; nothing is left that needs a previous key\n"
    assert (status, told) == (0, anew.format(64, 31, 1, 2) + again.format(62))
    status, told = await run()
    assert (status, told) == (0, anew.format(62, 0, 0, 0) + again.format(0))
    assert await sql.fetchval(order) == before
    kept = [payload for flag, payload in await payloads(sql) if flag]
    assert {json.loads(payload)["key"] for payload in kept} == {fingerprint(NEW)}
    timers = [json.loads(row["payload"])["key"] for row in await sql.fetch("SELECT payload FROM queen.timers")]
    assert timers == [fingerprint(NEW)] * 2
    only = changed(settings, server={"encryption_key": NEW}, timers={"interval_ms": 20})
    await sql.execute("UPDATE queen.timers SET next_attempt_at = clock_timestamp(), deliver_at = clock_timestamp()")
    async with another_server(only, database_url) as other:
        late = await other.wait("secret", "late")
        assert late[0]["data"] in ("once", "again")
        await other.ack(late[0], "completed")
        assert data(await other.dead_letters("secret")) == [message["data"]]
        left = data(await other.drain("secret"))
    expected = {*map(str, set(range(30)) - {message["data"]}), "from before"}
    assert {*map(str, left)} - {"once", "again"} == expected
    await sql.execute("DELETE FROM queen.timers")
    last = await sql.fetchrow('SELECT partition_id, "offset" FROM queen.messages ORDER BY 1 DESC, 2 DESC LIMIT 1')
    status, told = await run("--after", f"{last['partition_id']}:{last['offset']}")
    assert told.startswith(anew.format(1, 0, 0, 0))
    assert status == 0
    status, told = await run("--after", "nonsense")
    assert (status, "is not PARTITION:OFFSET" in told) == (2, True)
