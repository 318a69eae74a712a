"""A small shop in which some things go wrong: what the pages are looked at with."""

from __future__ import annotations

import json
import os
import threading
import uuid
from typing import Any

import asyncpg
import httpx
from integration.queen import age_messages

# The pictures of the documentation (`make pictures`) show the same shop without what tries to harm the pages.
FOR_PICTURES = os.environ.get("QUEEN_PICTURES") == "1"
HARM = "<script>document.title='owned'</script>"
HARMFUL_QUEUE = "<img src=x onerror=alert(1)>"
STUCK = ("payments", "acme-ltd")
GROUPS = ("billing", "shipping", "audit")


def harm(instead: str = "") -> str:
    """What tries to harm the pages, or in a picture something `instead`."""
    return instead if FOR_PICTURES else HARM


class Shop:
    """Speaks to the server as its producers and consumers do."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers["X-Queen-Consumer"] = "name=ledger-worker&host=till-4&process=77"
        self.http = httpx.Client(base_url=url, timeout=30, headers=headers)

    def call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        answer = self.http.request(method, path, params=params, **({} if body is None else {"json": body}))
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def configure(self, queue: str, namespace: str | None = None, **options: Any) -> None:
        self.call("POST", "/api/v1/configure", {"queue": queue, "namespace": namespace, "options": options})

    def push(self, queue: str, partition: str, *payloads: Any, name: str | None = None) -> None:
        items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
        if name is not None:
            for number, item in enumerate(items, 1):
                item["transactionId"] = name if len(items) == 1 else f"{name}-{number}"
        self.call("POST", "/api/v1/push", {"items": items})

    def pop(self, queue: str, group: str, partition: str | None = None, **params: Any) -> list[dict[str, Any]]:
        path = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
        answer = self.call("GET", path, consumerGroup=group, **params)
        return answer["messages"] if answer else []

    def ack(self, messages: list[dict[str, Any]], status: str = "completed", error: str | None = None) -> None:
        items = [
            {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
            | {"status": status, "error": error}
            for message in messages
        ]
        body = {"acknowledgments": items, "consumerGroup": messages[0]["consumerGroup"]}
        assert all(result["success"] for result in self.call("POST", "/api/v1/ack/batch", body))

    def read(self, queue: str, group: str, **params: Any) -> int:
        """Read and finish once."""
        messages = self.pop(queue, group, **params)
        if messages:
            self.ack(messages)
        return len(messages)

    def fail(self, queue: str, group: str, partition: str, error: str) -> dict[str, Any]:
        [message] = self.pop(queue, group, partition, batch=1)
        self.ack([message], "failed", error)
        return message

    def trace(self, message: dict[str, Any], kind: str, data: Any, group: str) -> None:
        self.call(
            "POST",
            "/api/v1/traces",
            {
                "transactionId": message["transactionId"],
                "partitionId": message["partitionId"],
                "eventType": kind,
                "data": data,
                "consumerGroup": group,
                "traceNames": ["checkout"],
            },
        )

    def refresh(self) -> None:
        self.call("POST", "/api/v1/stats/refresh", {})


class Traffic:
    """Somebody pushes, somebody reads, and somebody waits, until it is over."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._work, self._wait)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        shop = Shop(self._url)
        turn = 0
        while not self._over.wait(0.1):
            turn += 1
            shop.push("clicks", f"page-{turn % 9}", *[{"click": turn}] * (1 + turn % 5))
            shop.read("clicks", "analytics", batch=20, partitions=5)
        shop.http.close()

    def _wait(self) -> None:
        shop = Shop(self._url)
        while not self._over.is_set():
            shop.read("returns", "warehouse", wait=True, timeout=1000)
        shop.http.close()


def fill(shop: Shop) -> None:
    shop.configure("orders", "shop", leaseTime=300, retryLimit=3)
    for customer in range(1, 13):
        partition = f"customer-{customer:02}"
        orders = [{"order": customer * 100 + n, "total": 19.9 * n, "currency": "EUR"} for n in range(1, 6)]
        shop.push("orders", partition, *orders, name=f"order-{customer}")
    for _ in range(12):
        shop.read("orders", "billing", batch=5)
    for _ in range(5):
        shop.read("orders", "shipping", batch=5)
    shop.pop("orders", "audit", batch=3, partitions=2)
    shop.configure("payments", "shop", retryLimit=3, retryDelay=3_600_000, leaseTime=300)
    shop.push("payments", STUCK[1], *[{"invoice": n, "amount": 100 * n} for n in (7, 8, 9)], name="invoice")
    for other in ("globex", "initech"):
        shop.push("payments", other, {"invoice": 1, "amount": 12345678901234567890}, name="invoice-1")
        shop.read("payments", "ledger", partition=other)
    head = shop.fail("payments", "ledger", STUCK[1], "the bank answers 503 Service Unavailable")
    shop.trace(head, "info", {"step": "reserve", "account": "DE02…", "ms": 41}, "ledger")
    shop.trace(head, "error", {"step": "capture", "status": 503, "body": harm("upstream connect error")}, "ledger")
    shop.configure("emails", "notify", retryLimit=0)
    errors = ("550 mailbox unknown", "550 mailbox unknown", "timeout after 30 s", harm("421 too many connections"))
    for n, error in enumerate(errors, 1):
        mail = {"to": f"person{n}@example.org", "subject": harm("Your order is on its way")}
        shop.push("emails", f"campaign-{n}", mail, name=f"mail-{n}")
        shop.fail("emails", "smtp", f"campaign-{n}", error)
    shop.configure("reports", "nightly", delayedProcessing=7200)
    shop.push("reports", "sales", {"month": "2026-10"}, name="sales-october")
    shop.pop("reports", "office", batch=1)
    if not FOR_PICTURES:
        shop.push(HARMFUL_QUEUE, HARM, {"text": HARM}, name=HARM)
    for n in range(1, 131):
        shop.push("devices", f"sensor-{n:03}", {"celsius": 20 + n % 7})
    grants = [{"queues": ["orders.*"], "groups": ["shop-*"]}]
    limits = {"requestsPerSecond": 100, "longPolls": 5}
    shop.call(
        "POST",
        "/api/v1/tokens",
        {"name": f"till {harm('4')}", "role": "read-write", "grants": grants, "limits": limits},
    )
    shop.call("POST", "/api/v1/quotas", {"namespace": "devices", "maxMessages": 1000, "maxBytes": 10**9})
    put = {"op": "put", "ns": "shop", "forever": True}
    shop.call(
        "POST", "/api/v1/kv", {"operations": [put | {"key": f"rate-{n}", "value": {harm("EUR"): n}} for n in (1, 2)]}
    )
    lock = {"op": "acquire", "name": "nightly-report", "owner": "office-1", "ttlSeconds": 3600}
    shop.call("POST", "/api/v1/locks", {"operations": [lock]})
    shop.refresh()


async def neglect(shop: Shop, url: str) -> None:
    """What nobody has cared for since yesterday, for pictures."""
    shop.call("POST", "/api/v1/pause", {"queue": "emails", "consumerGroup": "smtp", "reason": "the provider is moving"})
    shop.configure("uploads", maxSize=5)
    shop.push("uploads", "scans", *range(5))
    shop.ack(shop.pop("uploads", "scanner"), "retry")
    sql = await asyncpg.connect(url)
    await age_messages(sql, "orders", 1500)
    await sql.close()
    shop.refresh()


async def past(url: str) -> None:
    """What takes longer than a test: an hour of history, runs of the pipeline, and operations in every state."""
    sql = await asyncpg.connect(url)
    await sql.execute(
        """
        INSERT INTO queen.activity (queue_name, bucket, server, push_requests, push_messages, pop_requests,
                                    pop_messages, ack_success, ack_failed, dead_lettered, lag_count,
                                    lag_sum_ms, lag_max_ms)
        SELECT queue, date_trunc('minute', now()) - make_interval(mins => n), 'yesterday', w / 10, w, w / 8, w * 0.97,
               w * 0.96, CASE WHEN n IN (12, 13, 31) THEN 3 ELSE 0 END, CASE WHEN n IN (12, 31) THEN 1 ELSE 0 END,
               w / 8, w * 3, 20 + 60 * abs(sin(n / 4.0)) + CASE WHEN n BETWEEN 28 AND 33 THEN 900 ELSE 0 END
        FROM generate_series(1, 59) AS n, unnest(ARRAY['', 'orders']) AS queue,
             LATERAL (SELECT (2400 + 1500 * sin(n / 7.0) + 500 * sin(n * 1.7))::bigint AS w) w
        ON CONFLICT DO NOTHING
        """
    )
    for job, state, minutes, took, rows, error in (
        ("archive", "finished", 15, 94, 812_400, None),
        ("audit", "finished", 40, 61, 812_400, None),
        ("window", "running", 3, 170, 45_120, None),
        ("backfill", "failed", 75, 12, 2_000, f"row 2001 of orders.parquet has no column payload {harm()}"),
        ("replay", "running", 90, 20, 10_000, None),
    ):
        await sql.execute(
            """
            INSERT INTO queen.pipeline_runs (id, job, queue_name, master, state, started_at, seen_at, ended_at, rows,
                                             options, offsets, summary, error)
            SELECT $1, $2, 'orders', 'local[2]', $3, at, at + make_interval(secs => $5),
                   CASE WHEN $3 <> 'running' THEN at + make_interval(secs => $5) END, $6, $7, $8, $9, $10
            FROM (SELECT now() - make_interval(mins => $4)) AS t (at)
            """,
            uuid.uuid4(),
            job,
            state,
            minutes,
            float(took),
            rows,
            json.dumps({"queue": "orders", "lake": "/var/lib/queen/lake"}),
            json.dumps({"partitions": 12, "messages": rows}),
            json.dumps({"files": 4} if state == "finished" else {}),
            error,
        )
    for name, state, wanted, error in (
        ("large-orders", "running", "running", None),
        ("order-stats", "waiting", "running", f"queue 'orders', partition 'p', offset 7: at is no time {harm()}"),
        ("orders-lake", "stopped", "stopped", None),
    ):
        await sql.execute(
            """
            WITH p AS (
                INSERT INTO queen.pipelines (name, kind, version, declaration, reads, writes, state_number, wanted)
                VALUES ($1, 'copy', 2, $5, '{orders}', '{copies}', 1, $3) RETURNING name, declaration
            ), v AS (
                INSERT INTO queen.pipeline_versions (name, version, declaration, state_number)
                SELECT name, n, declaration, 1 FROM p, generate_series(1, 2) n
            ), l AS (
                INSERT INTO queen.pipeline_leases (name, generation, holder, holder_name, held_until)
                SELECT name, 7, gen_random_uuid(), 'spark-1:4711', now() + interval '1 hour' FROM p
            ), b AS (
                INSERT INTO queen.pipeline_batches (name, ended_at, number, query, rows, seconds)
                SELECT name, now() - make_interval(secs => n), 1000 - n, 'orders copy', 40, 0.4 + abs(sin(n / 9.0))
                FROM p, generate_series(0, 99) n
            )
            INSERT INTO queen.pipeline_states (name, state, version, started_at, seen_at, starts, positions,
                                               covered_until, rows, batches, rate, error, error_at)
            SELECT p.name, $2, 2, now() - interval '1 hour', now(), 3, jsonb_build_object(gen_random_uuid(), 1),
                   now() - interval '8 seconds', 812400, 1000, 41.5, $4,
                   CASE WHEN $4::text IS NOT NULL THEN now() - interval '1 minute' END
            FROM p
            """,
            name,
            state,
            wanted,
            error,
            json.dumps({"kind": "copy", "source": "orders", "target": "copies", "checkpoint": "/data/copy"}),
        )
    for state, error in (("completed", None), ("failed", f"the queue is full {harm()}"), ("cancelled", None)):
        await sql.execute(
            """
            INSERT INTO queen.operation_queue (id, kind, queue_name, partition_name, status, attempts, error, result,
                                               created_at, claimed_at, finished_at, message_ids)
            VALUES ($1, 'push', 'orders', 'customer-01', $2, 3, $3, $4, now() - interval '4 minutes',
                    now() - interval '3 minutes', now() - interval '3 minutes', $5)
            """,
            uuid.uuid4(),
            state,
            error,
            json.dumps([{"status": "queued"}]) if state == "completed" else None,
            [uuid.uuid4() for _ in range(25)],
        )
    await sql.close()
