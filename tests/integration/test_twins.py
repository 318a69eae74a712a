"""Broken twins: servers whose SQL breaks a promise. `queen verify` must find each of them, under the right name."""

from __future__ import annotations

from dataclasses import dataclass, field

import asyncpg
import pytest

from queenmq.server import Server
from queenmq.storage.statements import function_set, versioned
from queenmq.verify import check
from queenmq.verify.workload import Load, run

LOAD = Load(seconds=1.5, producers=3, consumers=4, partitions=3, batch=5, lease_s=1, settle_s=8)
ROUNDS = 3
REFUSED = "'Invalid or expired lease'"


@dataclass(frozen=True)
class Twin:
    """A function of which a text is replaced, the workload that shows it, and the rule that must name it."""

    name: str
    function: str
    changes: tuple[tuple[str, str], ...] = field(repr=False)
    workload: str
    rule: str


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
    ),
    Twin(
        "leases are not fenced",
        "ack",
        ((f"WHEN fenced AND NOT live THEN {REFUSED}", ""), (f"WHEN fenced AND NOT leased THEN {REFUSED}", "")),
        "lease",
        "stale-leases-are-refused",
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
        (('ORDER BY m."offset" LIMIT v_limit', 'ORDER BY m."offset" DESC LIMIT v_limit'),),
        "log",
        "order-of-delivery",
    ),
    Twin(
        "two items of a push change places",
        "push",
        (
            (
                "v_base[p_target[t.i]] + p_rank[t.i],",
                "v_base[p_target[t.i]] + CASE WHEN p_rank[t.i] = 1 AND p_rank[t.i + 1] = 2 THEN 2 "
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
]


async def found(server: Server, workload: str) -> dict[str, int]:
    host, port = server.address
    history = await run([f"http://{host}:{port}"], workload, f"verify.{workload}", LOAD)
    return dict(check(history).by_rule())


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
async def test_the_twin_is_found(server: Server, database_url: str, twin: Twin) -> None:
    text = function_set().files[twin.function]
    for before, after in twin.changes:
        assert before in text, f"{twin.function}.sql has changed: {before!r} is not in it any more"
        text = text.replace(before, after)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(versioned(text))
    finally:
        await connection.close()
    rules: dict[str, int] = {}
    for _ in range(ROUNDS):
        rules = await found(server, twin.workload)
        if twin.rule in rules:
            return
    pytest.fail(f"{twin.rule} is not among what was found: {rules}")


async def test_the_server_itself_keeps_its_promises(server: Server) -> None:
    results = [await found(server, workload) for workload in dict.fromkeys(twin.workload for twin in TWINS)]
    assert [one for one in results if one] == []
