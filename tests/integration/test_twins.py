"""Broken twins: servers whose SQL breaks a promise. `queen verify` must find each of them, under the right name.

The twins of Python code are in test_twins_of_code.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import asyncpg
import pytest
from server_settings import settings_with

from queenmq.config import Settings
from queenmq.server import Server
from queenmq.storage.statements import function_set, versioned
from queenmq.verify import check
from queenmq.verify.workload import Load, run

LOAD = Load(
    seconds=0.8, producers=3, consumers=4, partitions=3, batch=5, lease_s=1, settle_s=60, drain_s=6, quiet_s=0.3
)
LEASES_S = 2.5  # for consumers who are too late, and others who get their messages
# All that is left is read only for the rules that need it.
NEEDS_THE_REST = ("everything-delivered", "dead-letters")
ROUNDS = 6
REFUSED = "'Invalid or expired lease'"
GIVEN = "last_offsets[p_target[t.i]] + p_rank[t.i],"
SLOW = ("END $$;", "    PERFORM pg_sleep(0.005);\nEND $$;")


@dataclass(frozen=True)
class Twin:
    """A function of which a text is replaced, the workload that shows it, and the rule that must name it."""

    name: str
    function: str
    changes: tuple[tuple[str, str], ...] = field(repr=False)
    workload: str
    rule: str
    slow: str | None = None
    """A function that takes some milliseconds longer, which is no fault by itself."""
    seconds: float = LOAD.seconds
    before: tuple[str, ...] = ()
    """What else is done to the tables."""

    def functions(self) -> list[str]:
        text = function_set().files[self.function]
        for before, after in self.changes:
            assert before in text, f"{self.function}.sql has changed: {before!r} is not in it any more"
            text = text.replace(before, after)
        return [*self.before, text, *([] if self.slow is None else [slowed(self.slow)])]


def slowed(function: str) -> str:
    return function_set().files[function].replace(*SLOW)


def unchecked() -> list[str]:
    """The trigger on messages, which does not look whether offsets follow each other."""
    text = function_set().files["messages_insert"]
    for line in ("AND h.last_new - h.first_new + 1 = h.added", "AND h.first_new = l.last_offset + 1"):
        assert line in text
        text = text.replace(line, "")
    return [text]


TWINS = [
    Twin(
        "two consumers hold a partition",
        "pop",
        (
            (
                "WHEN NOT r.auto_ack THEN greatest(\n                            clock_timestamp(), v_now + "
                "make_interval(secs => coalesce(nullif(v_queue.lease_time_s, 0), 60)))",
                "WHEN NOT r.auto_ack THEN clock_timestamp()",
            ),
        ),
        "lease",
        "one-lease-at-a-time",
    ),
    Twin(
        "a renewal does nothing",
        "renew",
        (
            ("SET lease_expires_at = greatest(", "SET lease_expires_at = least("),
            ("ready_at = greatest(", "ready_at = least("),
        ),
        "lease",
        "one-lease-at-a-time",
        seconds=LEASES_S,
    ),
    Twin(
        "leases are not fenced",
        "ack",
        ((f"WHEN fenced AND NOT live THEN {REFUSED}", ""), (f"WHEN fenced AND NOT leased THEN {REFUSED}", "")),
        "lease",
        "stale-leases-are-refused",
        seconds=LEASES_S,
    ),
    Twin(
        "what a consumer has lost never comes back",
        "pop",
        (("clock_timestamp(), v_now + make_interval(", "'infinity', v_now + make_interval("),),
        "lease",
        "everything-delivered",
    ),
    Twin(
        "finishing a lease skips a message",
        "finish_leased",
        (
            (
                "CASE WHEN c.skipped IS NULL THEN greatest(c.position, upper(c.lease_offsets) - 1)",
                "CASE WHEN c.skipped IS NULL THEN greatest(c.position, upper(c.lease_offsets))",
            ),
        ),
        "log",
        "everything-delivered",
    ),
    Twin(
        "finishing a lease does not move the position",
        "finish_leased",
        (("SET position = g.position,", "SET position = c.position,"),),
        "log",
        "nothing-after-its-ack",
    ),
    Twin(
        "a batch is turned round",
        "pop",
        (("'\\x1e'::bytea ORDER BY k.\"offset\"),", "'\\x1e'::bytea ORDER BY k.\"offset\" DESC),"),),
        "log",
        "order-of-delivery",
    ),
    Twin(
        "the newest messages come first",
        "pop",
        (('ORDER BY m."offset" LIMIT CASE', 'ORDER BY m."offset" DESC LIMIT CASE'),),
        "log",
        "order-of-delivery",
    ),
    Twin(
        "two items of a push change places",
        "push",
        (
            (
                GIVEN,
                "last_offsets[p_target[t.i]] + CASE WHEN p_rank[t.i] = 1 AND p_rank[t.i + 1] = 2 THEN 2 "
                "WHEN p_rank[t.i] = 2 THEN 1 ELSE p_rank[t.i] END,",
            ),
        ),
        "log",
        "order-of-pushes",
    ),
    Twin(
        "failures do not count",
        "ack",
        (("WHEN t.status = 'failed'", "WHEN t.status = 'never'"),),
        "dead-letters",
        "dead-letters",
    ),
    Twin(
        "dead letters are not kept",
        "bury",
        (("WHERE p.id = p_partition", "WHERE false AND p.id = p_partition"),),
        "dead-letters",
        "dead-letters",
    ),
    Twin(
        "a transaction forgets its acknowledgements",
        "transact",
        (
            (
                "p_lease, p_status, p_error, p_required) a;",
                "p_lease, array_fill('retry'::text, ARRAY[cardinality(p_status)]), p_error, p_required) a;",
            ),
        ),
        "transaction",
        "nothing-after-its-ack",
    ),
    Twin(
        "what is handed back counts as finished",
        "ack",
        (
            (
                "FILTER (WHERE verdict NOT IN ('failed', 'retry', 'skipped', 'parked')), '{}') AS finishing",
                "FILTER (WHERE verdict NOT IN ('failed', 'skipped', 'parked')), '{}') AS finishing",
            ),
        ),
        "lease",
        "everything-delivered",
    ),
    Twin(
        "the position moves past what is not finished",
        "ack",
        (("ELSE lower(c.lease_offsets - y.finishing) - 1 END", "ELSE upper(c.lease_offsets) - 1 END"),),
        "lease",
        "everything-delivered",
    ),
    Twin(
        "what was finished out of order comes again",
        "pop",
        (('AND m."offset" > finished.upto AND NOT hidden.offsets @> m."offset"', 'AND m."offset" > finished.upto'),),
        "lease",
        "nothing-after-its-ack",
        seconds=LEASES_S,
    ),
    Twin(
        "the last retry is left out",
        "ack",
        ((">= coalesce(y.retry_limit, q.retry_limit)", ">= coalesce(y.retry_limit, q.retry_limit) - 1"),),
        "dead-letters",
        "dead-letters",
    ),
    Twin(
        "a message of a push is left out",
        "push",
        (
            (
                "FROM (SELECT generate_subscripts(p_target, 1) AS i) t;",
                # The last one of three or more: a hole in the offsets is refused by the trigger, and stored by nobody.
                "FROM (SELECT generate_subscripts(p_target, 1) AS i) t"
                " WHERE p_rank[t.i] < 3 OR p_target[t.i + 1] = p_target[t.i];",
            ),
        ),
        "log",
        "nothing-lost",
    ),
    Twin(
        "a group falls asleep without the lock of the head",
        "finish_leased",
        (
            (
                "upper(c.lease_offsets) - 1, upper(c.done) - 1)\n        FOR NO KEY UPDATE OF l SKIP LOCKED",
                "upper(c.lease_offsets) - 1, upper(c.done) - 1)",
            ),
        ),
        "log",
        "everything-delivered",
        # A push that takes its time between looking whether the group is awake and its commit.
        slow="push",
    ),
    Twin(
        "a push overtakes what is queued",
        "push",
        (
            (
                "WHERE o.partition_id = ANY (partition_ids) AND o.status IN ('pending', 'processing')",
                "WHERE o.partition_id = ANY (partition_ids) AND o.status = 'never'",
            ),
        ),
        "overload",
        "order-of-pushes",
    ),
    Twin(
        "a timer comes early",
        "change_timers",
        (("v_now + p_delay_ms[i] * interval", "v_now - p_delay_ms[i] * interval"),),
        "timers",
        "timers",
    ),
    Twin(
        "a cancelled timer stays",
        "change_timers",
        (
            (
                "t.queue_name = p_queue[i] AND t.key = p_key[i]\n",
                "t.queue_name = p_queue[i] AND t.key = p_key[i] AND false\n",
            ),
            ("CASE WHEN FOUND THEN 'cancelled' ELSE 'absent' END", "'cancelled'"),
        ),
        "timers",
        "timers",
    ),
    Twin(
        "offsets are given twice",
        "push",
        ((GIVEN, "last_offsets[p_target[t.i]] + greatest(p_rank[t.i] - 1, 1),"),),
        "log",
        "one-message-an-offset",
        # The table and its trigger would refuse them.
        before=("ALTER TABLE queen.messages DROP CONSTRAINT messages_pkey", *unchecked()),
    ),
    Twin(
        "an offset is left out",
        "messages_insert",
        (("SET last_offset = h.last_new,", "SET last_offset = h.last_new + 1,"),),
        "log",
        "no-gaps",
    ),
    Twin(
        "a message is stored as another one",
        "push",
        (
            (
                "p_payload[t.i],\n               p_headers[t.i]\n        FROM (SELECT generate_subscripts",
                "CASE p_rank[t.i] WHEN 2 THEN convert_to(format('{\"id\":\"%s\"}', p_id[t.i]), 'UTF8') "
                "ELSE p_payload[t.i] END,\n               p_headers[t.i]\n        FROM (SELECT generate_subscripts",
            ),
        ),
        "log",
        "nothing-invented",
    ),
    Twin(
        "a seek moves nothing",
        "seek",
        (("SET position = place.position, done = place.done,", "SET position = c.position, done = c.done,"),),
        "seek",
        "order-of-delivery",
    ),
    Twin(
        "a seek to the end goes to the beginning",
        "seek",
        (("p_at IS NULL AND p_bound IS NULL THEN l.last_offset", "p_at IS NULL AND p_bound IS NULL THEN 0"),),
        "seek",
        "seeks",
        seconds=LEASES_S,
    ),
]


@pytest.fixture
def settings() -> Settings:
    """A server for which little is much, so that it defers pushes."""
    return settings_with(overload={"wait_threshold_ms": 5, "standing_wait_ms": 2, "standing_after_ms": 20})


def load_for(rule: str | None, seed: int, seconds: float = LOAD.seconds) -> Load:
    return replace(
        LOAD, seed=seed, seconds=seconds, drain_s=LOAD.drain_s if rule is None or rule in NEEDS_THE_REST else 0.2
    )


async def found(server: Server, workload: str, load: Load) -> dict[str, int]:
    host, port = server.address
    history = await run([f"http://{host}:{port}"], workload, f"verify.{workload}.{load.seed}", load, keep=True)
    return dict(check(history).by_rule())


async def define(database_url: str, *functions: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for text in functions:
            await connection.execute(versioned(text))
    finally:
        await connection.close()


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
async def test_the_twin_is_found(server: Server, database_url: str, twin: Twin) -> None:
    await define(database_url, *twin.functions())
    rules: dict[str, int] = {}
    for seed in range(ROUNDS):
        rules = await found(server, twin.workload, load_for(twin.rule, seed, twin.seconds))
        if twin.rule in rules:
            return
    pytest.fail(f"{twin.rule} is not among what was found: {rules}")


@pytest.mark.parametrize("workload", ["log", "overload"])
async def test_the_server_itself_keeps_its_promises(server: Server, database_url: str, workload: str) -> None:
    """The other workloads are in tests/cli/test_verify.py."""
    await define(database_url, *(slowed(twin.slow) for twin in TWINS if twin.slow is not None))
    assert await found(server, workload, load_for(None, 0)) == {}
