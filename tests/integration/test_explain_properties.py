"""Whatever explain says about the next pop, the next pop does.

A history is a random walk from one seed over everything that decides what a pop gets. After each step somebody is asked
for, a group in a queue or in one of its partitions, and then pops. Time passes by moving every stored moment back, by
multiples of 20 s, as all limits are: so nothing ends within the real seconds of a history but the default retryDelay.
A seed that fails is named with the command that runs it alone. QUEEN_LONG=1 walks for an hour instead of seconds.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Json, Message, Queen
from queenmq.config import Settings
from queenmq.core.explanation import group_state
from queenmq.core.names import QUEUE_MODE
from queenmq.server import Server

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
CHOSEN = os.environ.get("QUEEN_EXPLAIN_SEED")
HISTORIES = 1500 if LONG else 7
STEPS = 45
PARTITIONS = ("a", "b", "Default")
GROUPS = (QUEUE_MODE, "g", "h")
STATUSES = ("completed", "completed", "failed", "failed", "retry", "dlq")
QUEUE = "walk"

# Every moment that is stored about the queue, earlier by so many seconds: as if they had passed.
_PASS = """
WITH p AS MATERIALIZED (
    SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1
), messages AS (
    UPDATE queen.messages m SET created_at = created_at - make_interval(secs => $2) FROM p WHERE m.partition_id = p.id
), heads AS (
    UPDATE queen.partition_lookup l SET last_message_at = last_message_at - make_interval(secs => $2)
    FROM p WHERE l.partition_id = p.id
), rows AS (
    UPDATE queen.partition_consumers c
    SET ready_at = ready_at - make_interval(secs => $2), retry_at = retry_at - make_interval(secs => $2),
        lease_expires_at = lease_expires_at - make_interval(secs => $2),
        last_consumed_at = last_consumed_at - make_interval(secs => $2)
    FROM p WHERE c.partition_id = p.id
), floors AS (
    UPDATE queen.ready_floors SET floor = floor - make_interval(secs => $2)
), whole AS (
    UPDATE queen.consumer_groups SET since = since - make_interval(secs => $2) WHERE queue_name = $1
)
UPDATE queen.partition_subscriptions SET since = since - make_interval(secs => $2) WHERE queue_name = $1
"""

# What a group has not finished, counted message by message: in each partition, and how much of it is due.
_COUNTED = """
SELECT p.name AS partition, c.partition_id IS NOT NULL AS placed,
       count(*) FILTER (WHERE u.unread) AS unread,
       count(*) FILTER (
           WHERE u.unread AND m.created_at <= clock_timestamp() - make_interval(secs => q.delayed_processing_s)
           AND l.last_message_at <= clock_timestamp() - make_interval(secs => q.window_buffer_s)
           AND (coalesce(q.ttl_s, 0) = 0 OR m.created_at > clock_timestamp() - make_interval(secs => q.ttl_s))
           AND NOT (q.dlq_after_max_retries AND coalesce(c.lease_expires_at <= clock_timestamp(), false)
                    AND m."offset" = lower(c.lease_offsets)
                    AND queen.failed_attempts(c, m."offset") >= q.retry_limit)) AS due
FROM queen.queues q
JOIN queen.partitions p ON p.queue_id = q.id
JOIN queen.partition_lookup l ON l.partition_id = p.id
LEFT JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group = $2
LEFT JOIN queen.consumer_groups g ON g.queue_name = q.name AND g.name = $2
LEFT JOIN queen.partition_subscriptions s ON s.queue_name = q.name AND s.partition_name = p.name AND s.name = $2
LEFT JOIN queen.messages m ON m.partition_id = p.id
CROSS JOIN LATERAL (
    SELECT m."offset" IS NOT NULL AND CASE
        WHEN c.partition_id IS NOT NULL THEN m."offset" > c.position AND NOT c.done @> m."offset"
        ELSE coalesce(m.created_at >= coalesce(s.since, g.since), true) END AS unread
) u
WHERE q.name = $1 AND ($3::text IS NULL OR p.name = $3)
GROUP BY p.name, c.partition_id
"""


class Walk:
    def __init__(self, seed: int, queen: Queen, sql: asyncpg.Connection, server: Server) -> None:
        self.chance = random.Random(seed)
        self.queen = queen
        self.sql = sql
        self.server = server
        self.held: list[Message] = []
        self.pushed = 0
        self.log: list[str] = []
        self.heard: dict[str, int] = {}
        self.ttl: int | None = None

    async def live(self) -> None:
        await self.configure()
        acts = {
            self.push: 8,
            self.pop: 5,
            self.acknowledge: 8,
            self.pass_time: 5,
            self.configure: 1,
            self.seek: 2,
            self.insert: 1,
            self.retry_letter: 2,
            self.redrive: 1,
            self.bury: 1,
            self.delete_message: 1,
            self.delete_group: 1,
            self.resubscribe: 1,
            self.retain: 1,
            self.clear: 1,
            self.delete_queue: 1,
            self.switch: 1,
        }
        for step in range(STEPS):
            [act] = self.chance.choices(list(acts), list(acts.values()))
            self.log.append(f"{step}: {act.__name__}")
            await act()
            await self.ask_and_pop()
            if step % 9 == 8:
                await self.compare_groups()

    def say(self, **what: Any) -> None:
        self.log[-1] += f" {what}"

    # What is asked

    async def ask_and_pop(self) -> None:
        group = self.chance.choice(GROUPS)
        partition = self.chance.choice((None, None, *PARTITIONS))
        named = {} if group == QUEUE_MODE and self.chance.random() < 0.5 else {"consumerGroup": group}
        where = {} if partition is None else {"partition": partition}
        answer = await self.queen.http.get(f"/api/v1/explain/{QUEUE}", params={"consumerGroup": group} | where)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        counted = {row["partition"]: row for row in await self.sql.fetch(_COUNTED, QUEUE, group, partition)}
        popped = await self.queen.pop(QUEUE, partition, **named)
        self.say(group=group, partition=partition, reason=told["reason"], popped=[m["transactionId"] for m in popped])
        self.heard[told["reason"]] = self.heard.get(told["reason"], 0) + 1
        self.held += popped
        until = [datetime.fromisoformat(place["until"]) for place in told["partitions"] if place["until"]]
        if until and min(until) <= datetime.now(UTC) and not told["deliverable"]:
            return  # it ended meanwhile, as told
        assert told["deliverable"] is bool(popped), told["explanation"]
        if told["reason"] != "group_never_started":
            assert told["deliverable"] is (told["reason"] == "deliverable"), told
        if popped:
            first = next(place for place in told["partitions"] if place["reason"] == "deliverable")
            [message] = popped
            assert first["partition"] == message["partition"], told["explanation"]
            assert first["nextTransactionId"] == message["transactionId"], told["explanation"]
            assert first["attempts"] == message["retryCount"], told["explanation"]
        self.is_true(told, counted)

    def is_true(self, told: Json, counted: dict[str, asyncpg.Record]) -> None:
        for place in told["partitions"]:
            seen = counted[place["partition"]]
            assert place["unread"] == seen["unread"], place
            assert place["started"] is seen["placed"], place
            assert place["ready"] == (seen["due"] if place["reason"] == "deliverable" else 0), place
            match place["reason"]:
                case "leased":
                    assert place["leaseId"], place
                case "retry_pause" | "delayed" | "window_open":
                    assert datetime.fromisoformat(place["until"]) > datetime.now(UTC) - timedelta(seconds=15), place
                case "end_reached":
                    assert seen["unread"] == 0, place
                case "expired" | "exhausted":
                    assert seen["unread"] > 0, place
                    assert seen["due"] == 0, place
        if told["reason"] in ("end_reached", "queue_unknown", "partition_unknown"):
            assert sum(row["unread"] for row in counted.values()) == 0, told["explanation"]

    async def compare_groups(self) -> None:
        await self.queen.http.post("/api/v1/stats/refresh", json={})
        listed = (await self.queen.http.get("/api/v1/consumer-groups", params={"queue": QUEUE})).json()
        for group in listed:
            rows = await self.sql.fetch(_COUNTED, QUEUE, group["name"], None)
            if not any(row["placed"] for row in rows):
                assert not group["unread"]
                continue
            assert group["unread"] == sum(row["unread"] for row in rows), (group, rows)
            assert group["totalLag"] == sum(row["due"] for row in rows), (group, rows)
            assert group["partitionsWithLag"] == sum(row["due"] > 0 for row in rows), (group, rows)
            if group["totalLag"] == 0:
                assert group["maxTimeLag"] == 0, group
            figures = [group[name] for name in ("unread", "totalLag", "maxTimeLag", "reading")]
            assert group["standing"] == group_state(True, False, *figures)
            shown = (await self.queen.http.get(f"/api/v1/consumer-groups/{group['name']}")).json()[QUEUE]["partitions"]
            by_name = {row["partition"]: row for row in rows}
            assert sum(place["unread"] for place in shown) == group["unread"], (shown, group)
            for place in shown:
                assert place["offsetLag"] == by_name[place["partition"]]["due"], place

    # What is done

    async def configure(self) -> None:
        pick = self.chance.choice
        options = {
            "delayedProcessing": pick((0, 0, 0, 60)),
            "windowBuffer": pick((0, 0, 0, 60)),
            "retryLimit": pick((0, 1, 3)),
            "retryDelay": pick((0, 0, 60_000)),
            "ttl": pick((None, None, 200)),
            "dlqAfterMaxRetries": pick((True, False)),
            "deadLetterQueue": pick((True, False)),
            "leaseTime": 60,
            "retentionEnabled": True,
            "retentionSeconds": pick((0, 0, 400)),
            "completedRetentionSeconds": pick((0, 100)),
            "maxWaitTimeSeconds": pick((0, 0, 300)),
        }
        self.ttl = options["ttl"]
        if self.log:
            self.say(**options)
        await self.queen.configure(QUEUE, **options)

    def _names(self) -> tuple[str, str | None]:
        return self.chance.choice(GROUPS), self.chance.choice((None, *PARTITIONS))

    async def push(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        items = []
        for _ in range(self.chance.randint(1, 3)):
            self.pushed += 1
            items.append(
                {"queue": QUEUE, "partition": partition, "payload": self.pushed, "transactionId": f"t{self.pushed}"}
            )
        self.say(into=partition, ids=[item["transactionId"] for item in items])
        await self.queen.push_items(*items)

    async def insert(self) -> None:
        """As psql does it, with a moment of its own."""
        self.pushed += 1
        await self.sql.execute(
            "INSERT INTO queen.messages (partition_id, transaction_id, payload, created_at) "
            "SELECT p.id, $2, '1', clock_timestamp() - make_interval(secs => $3) "
            "FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 "
            "ORDER BY p.name LIMIT 1",
            QUEUE,
            f"t{self.pushed}",
            self.chance.choice((0, 30, 500)),
        )

    async def pop(self) -> None:
        group, partition = self._names()
        mode = self.chance.choice(({}, {}, {"subscriptionMode": "new"}, {"subscriptionMode": "all"}))
        asked: Json = {"batch": self.chance.randint(1, 4), "partitions": self.chance.randint(1, 3), **mode}
        if self.chance.random() < 0.2:
            asked["autoAck"] = True
        got = await self.queen.pop(QUEUE, partition, consumerGroup=group, **asked)
        self.say(group=group, of=partition, **asked, got=[message["transactionId"] for message in got])
        if "autoAck" not in asked:
            self.held += got

    async def acknowledge(self) -> None:
        """Some messages of one lease, each with what is said of it."""
        if not self.held:
            return
        lease = self.chance.choice(self.held)["leaseId"]
        mine = [message for message in self.held if message["leaseId"] == lease]
        chosen = self.chance.sample(mine, self.chance.randint(1, len(mine)))
        self.held = [message for message in self.held if message not in chosen]
        says = [self.chance.choice(STATUSES) for _ in chosen]
        self.say(said=list(zip([message["transactionId"] for message in chosen], says, strict=True)))
        items = [
            {"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": lease, "status": s}
            for m, s in zip(chosen, says, strict=True)
        ]
        body = {"acknowledgments": items, "consumerGroup": chosen[0]["consumerGroup"]}
        await self.queen.http.post("/api/v1/ack/batch", json=body)

    async def pass_time(self) -> None:
        seconds = self.chance.choice((20, 40, 80, 260, 460))
        self.say(seconds=seconds)
        await self.sql.execute(_PASS, QUEUE, seconds)

    async def seek(self) -> None:
        group, partition = self._names()
        at = (datetime.now(UTC) - timedelta(seconds=self.chance.choice((20, 100, 10**6)))).isoformat()
        body = {"toEnd": True} if self.chance.random() < 0.3 else {"timestamp": at}
        self.say(group=group, of=partition, body=body)
        path = f"/api/v1/consumer-groups/{group}/queues/{QUEUE}"
        path += f"/partitions/{partition}/seek" if partition else "/seek"
        await self.queen.http.post(path, json=body)

    async def _message(self) -> str | None:
        """The path of some message."""
        rows = await self.sql.fetch(
            "SELECT m.partition_id, m.transaction_id FROM queen.messages m JOIN queen.partitions p "
            "ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 "
            'ORDER BY p.name, m."offset"',
            QUEUE,
        )
        if not rows:
            return None
        row = self.chance.choice(rows)
        self.say(message=row["transaction_id"])
        return f"/api/v1/messages/{row['partition_id']}/{row['transaction_id']}"

    async def retry_letter(self) -> None:
        letters = (await self.queen.dead_letter_page(queue=QUEUE))["messages"]
        if letters:
            letter = self.chance.choice(sorted(letters, key=lambda row: (row["transactionId"], row["consumerGroup"])))
            self.say(letter=letter["transactionId"])
            await self.queen.http.post(f"/api/v1/messages/{letter['partitionId']}/{letter['transactionId']}/retry")

    async def redrive(self) -> None:
        await self.queen.http.post("/api/v1/dlq/redrive", json={"queue": QUEUE})

    async def bury(self) -> None:
        if path := await self._message():
            await self.queen.http.post(f"{path}/dlq")

    async def delete_message(self) -> None:
        if path := await self._message():
            await self.queen.http.delete(path)

    async def delete_group(self) -> None:
        group, _ = self._names()
        metadata = self.chance.random() < 0.5
        self.say(group=group, metadata=metadata)
        await self.queen.delete_group(group, QUEUE, deleteMetadata=metadata)

    async def resubscribe(self) -> None:
        group, _ = self._names()
        self.say(group=group)
        await self.queen.subscribe_from(group, (datetime.now(UTC) - timedelta(seconds=100)).isoformat())

    async def retain(self) -> None:
        for step in ("retain(q.id, NULL, 1000)", "evict(q.id, NULL, NULL, 1000)"):
            await self.sql.execute(f"SELECT queen.{step} FROM queen.queues q WHERE q.name = $1", QUEUE)

    async def clear(self) -> None:
        await self.queen.http.delete(f"/api/v1/queues/{QUEUE}/clear")

    async def delete_queue(self) -> None:
        if self.chance.random() < 0.5:
            await self.queen.http.delete(f"/api/v1/resources/queues/{QUEUE}")
            self.held = []

    async def switch(self) -> None:
        """Pops off, and asked meanwhile; then on again."""
        path = "/api/v1/system/maintenance/pop"
        await self.queen.http.post(path, json={"enabled": True})
        try:
            await self.ask_and_pop()
        finally:
            await self.queen.http.post(path, json={"enabled": False})


@pytest.fixture
def settings() -> Settings:
    """Without sweeps of the server itself: one that comes between the answer and the pop would change what it gets."""
    day_ms = 86_400_000
    return settings_with(retention={"interval_ms": day_ms, "eviction_interval_ms": day_ms})


@pytest.mark.timeout(7200 if LONG else 600)
async def test_what_explain_says_the_next_pop_does(queen: Queen, sql: asyncpg.Connection, server: Server) -> None:
    seeds = [int(CHOSEN)] if CHOSEN else [random.getrandbits(32) for _ in range(HISTORIES)]
    heard: dict[str, int] = {}
    for seed in seeds:
        await queen.http.delete(f"/api/v1/resources/queues/{QUEUE}")
        for group in GROUPS:
            await queen.delete_group(group)
        walk = Walk(seed, queen, sql, server)
        try:
            await walk.live()
        except Exception as failure:
            failure.add_note("\n".join(walk.log))
            failure.add_note(f"to run it again: QUEEN_EXPLAIN_SEED={seed} pytest {__file__}")
            raise
        for reason, times in walk.heard.items():
            heard[reason] = heard.get(reason, 0) + times
    if not CHOSEN:
        assert {"deliverable", "leased", "end_reached", "group_never_started", "paused"} <= heard.keys()
