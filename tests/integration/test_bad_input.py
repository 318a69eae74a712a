"""Bad input is refused with a reason, writes nothing and harms nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Queen, stored
from integration.wire import Answer, Wire, connect
from queenmq.config import Settings
from queenmq.core.options import MAX_COUNT, MAX_SECONDS
from queenmq.server import Server

ID = "00000000-0000-4000-8000-000000000000"
HUGE = 2**70
DEEP = b"[" * 100_000 + b"]" * 100_000
MAX_TARGET = 16 * 1024

PUSH = "/api/v1/push"
CONFIGURE = "/api/v1/configure"
ACK = "/api/v1/ack"
ACK_BATCH = "/api/v1/ack/batch"
TRANSACTION = "/api/v1/transaction"
TRACES = "/api/v1/traces"
EXTEND = f"/api/v1/lease/{ID}/extend"
POP = "/api/v1/pop/queue/q"
DLQ = "/api/v1/dlq"
GROUP = "/api/v1/consumer-groups/g"
SUBSCRIPTION = f"{GROUP}/subscription"
SEEK = f"{GROUP}/queues/q/seek"
WITH_BODY = (PUSH, CONFIGURE, ACK, ACK_BATCH, TRANSACTION, TRACES, EXTEND, SUBSCRIPTION, SEEK)

QUERIES = "/streams/v1/queries"
STATE = "/streams/v1/state/get"
CYCLE = "/streams/v1/cycle"
LISTINGS = (
    "/api/v1/resources/queues",
    "/api/v1/resources/queues/q",
    "/api/v1/resources/partitions",
    "/api/v1/resources/namespaces",
    "/api/v1/resources/tasks",
    "/api/v1/status/queues",
    "/api/v1/consumer-groups",
    "/api/v1/messages",
    "/api/v1/traces/names",
    "/api/v1/traces/by-name/n",
)
HISTORIES = (
    "/api/v1/analytics/system-metrics",
    "/api/v1/analytics/worker-metrics",
    "/api/v1/analytics/queue-ops",
    "/api/v1/analytics/queue-parked-replicas",
    "/api/v1/analytics/retention",
    "/api/v1/messages",
    "/api/v1/status",
    "/api/v1/status/analytics",
)

Json = dict[str, Any]

# Services that write by themselves: statistics fold what they have counted, and some tests take longer than they pause.
NEVER_MS = 3_600_000
QUIET: Json = {
    "statistics": {"interval_ms": NEVER_MS, "reconcile_interval_ms": NEVER_MS, "sample_interval_ms": NEVER_MS},
    "retention": {"interval_ms": NEVER_MS, "eviction_interval_ms": NEVER_MS},
}


@pytest.fixture
def settings() -> Settings:
    return settings_with(**QUIET)


class Bad(NamedTuple):
    """A request that must be refused, and how."""

    about: str
    method: str
    target: str | bytes
    body: bytes = b""
    field: str | None = None
    code: str = "invalid_request"
    status: int = 400


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


def post(target: str, body: Any, field: str | None, about: str = "") -> Bad:
    return Bad(f"{target} {field} {about}", "POST", target, js(body), field)


def no_json(target: str, body: bytes, about: str) -> Bad:
    return Bad(f"{target} {about}", "POST", target, body, None, "invalid_json")


NO_STRINGS: Json = {"number": 7, "flag": True, "array": ["q"], "object": {"a": "q"}}
NO_TEXTS = NO_STRINGS | {"NUL": "a\0b"}
NO_LABELS = NO_TEXTS | {"256 characters": "x" * 256, "256 wide characters": "é" * 256}
NO_NAMES = NO_LABELS | {"empty": ""}
NO_UUIDS = NO_STRINGS | {
    "empty": "",
    "word": "partition",
    "short": ID[:-1],
    "long": ID + "0",
    "no hyphens": ID.replace("-", ""),
    "braces": "{" + ID + "}",
    "no hexadecimal": ID[:-1] + "g",
    "newline": ID + "\n",
    "NUL": ID[:-1] + "\0",
    "wide digits": ID[:-1] + "\uff11",
}
NO_MOMENTS = NO_STRINGS | {
    "empty": "",
    "word": "yesterday",
    "month 13": "2024-13-01T00:00:00Z",
    "day 30": "2024-02-30T00:00:00Z",
    "hour 25": "2024-01-01T25:00:00Z",
    "five digits": "12024-01-01T00:00:00Z",
    "before year 1": "0001-01-01T00:00:00+14:00",
    "after year 9999": "9999-12-31T23:59:59-14:00",
    "number": 1700000000,
    "number as text": "1700000000",
    "NUL": "2024-01-01\0",
    "negative": "-2024-01-01",
}
NO_INTEGERS = {"text": "5", "fraction": 1.5, "flag": True, "array": [5], "object": {}, "huge": HUGE, "minus": -HUGE}
NO_SECONDS = NO_INTEGERS | {"negative": -1, "above the limit": MAX_SECONDS + 1}


def each(target: str, build: Callable[[Any], Any], field: str, wrong: Json) -> Iterator[Bad]:
    """One bad request for each wrong value; a lone surrogate and a number beyond all range are no good anywhere."""
    for about, value in wrong.items():
        yield post(target, build(value), field, about)
    for about, value in {"high surrogate": "\ud800", "low surrogate": "a\udc00b", "swapped": "\udc00\ud800"}.items():
        yield no_json(target, js(build(value)), f"{field} {about}")
    beyond = js(build("BEYOND")).replace(b'"BEYOND"', b"1e400")
    yield Bad(f"{target} {field} 1e400", "POST", target, beyond, field)


def configure_cases() -> Iterator[Bad]:
    yield from each(CONFIGURE, lambda v: {"queue": v}, "queue", NO_NAMES | {"null": None})
    for label in ("namespace", "task"):
        yield from each(CONFIGURE, lambda v, label=label: {"queue": "new", label: v}, label, NO_LABELS)
    yield post(CONFIGURE, {}, "queue", "missing")
    for about, options in {"array": [], "text": "x", "number": 1, "flag": False}.items():
        yield post(CONFIGURE, {"queue": "new", "options": options}, "options", about)
    for name in (
        "leaseTime",
        "ttl",
        "delayedProcessing",
        "windowBuffer",
        "retentionSeconds",
        "completedRetentionSeconds",
        "maxWaitTimeSeconds",
    ):
        yield from option(name, NO_SECONDS)
    for name in ("maxSize", "retryLimit", "retryDelay"):
        yield from option(name, NO_INTEGERS | {"negative": -1, "above the limit": MAX_COUNT + 1})
    yield from option("priority", NO_INTEGERS | {"above the limit": MAX_COUNT + 1, "below it": -MAX_COUNT - 1})
    for name in ("deadLetterQueue", "dlqAfterMaxRetries", "retentionEnabled", "encryptionEnabled"):
        yield from option(name, {"text": "true", "number": 1, "null": None, "array": []})
    yield post(
        CONFIGURE, {"queue": "new", "options": {"encryptionEnabled": True}}, "options.encryptionEnabled", "no key"
    )


def option(name: str, wrong: Json) -> Iterator[Bad]:
    yield from each(CONFIGURE, lambda v: {"queue": "new", "options": {name: v}}, f"options.{name}", wrong)


def push_cases() -> Iterator[Bad]:
    yield post(PUSH, {}, "items", "missing")
    for about, items in {"null": None, "object": {}, "text": "x", "number": 1}.items():
        yield post(PUSH, {"items": items}, "items", about)
    for about, item in {"null": None, "text": "x", "array": [], "number": 1}.items():
        yield post(PUSH, {"items": [{"queue": "new"}, item]}, "items[1]", about)
    yield post(PUSH, {"items": [{"payload": 1}]}, "items[0].queue", "missing")
    for name in ("queue", "partition", "transactionId"):
        yield from pushed_item(name, NO_NAMES | {"null": None})
    yield from pushed_item("traceId", NO_STRINGS | {"null": None})


def pushed_item(name: str, wrong: Json) -> Iterator[Bad]:
    good = {"queue": "new", "payload": 1}
    yield from each(PUSH, lambda v: {"items": [good, good | {name: v}]}, f"items[1].{name}", wrong)


def ack_cases() -> Iterator[Bad]:
    good = {"transactionId": "t", "partitionId": ID}
    yield from acknowledgement(ACK, lambda a: a, "", good)
    yield from each(ACK, lambda v: good | {"consumerGroup": v}, "consumerGroup", NO_LABELS)
    yield post(ACK, {"partitionId": ID}, "transactionId", "missing")
    yield post(ACK, {"transactionId": "t"}, "partitionId", "missing")


def ack_batch_cases() -> Iterator[Bad]:
    good = {"transactionId": "t", "partitionId": ID}
    yield from acknowledgement(ACK_BATCH, lambda a: {"acknowledgments": [good, a]}, "acknowledgments[1].", good)
    yield from each(ACK_BATCH, lambda v: {"acknowledgments": [good], "consumerGroup": v}, "consumerGroup", NO_LABELS)
    yield post(ACK_BATCH, {}, "acknowledgments", "missing")
    for about, items in {"null": None, "object": {}, "text": "x"}.items():
        yield post(ACK_BATCH, {"acknowledgments": items}, "acknowledgments", about)
    yield post(ACK_BATCH, {"acknowledgments": [good, 1]}, "acknowledgments[1]", "number")
    yield post(ACK_BATCH, {"acknowledgments": [{"partitionId": ID}]}, "acknowledgments[0].transactionId", "missing")
    yield post(ACK_BATCH, {"acknowledgments": [{"transactionId": "t"}]}, "acknowledgments[0].partitionId", "missing")


def acknowledgement(target: str, wrap: Callable[[Json], Json], prefix: str, good: Json) -> Iterator[Bad]:
    wrong = {
        "transactionId": NO_NAMES,
        "partitionId": NO_UUIDS,
        "status": NO_STRINGS,
        "leaseId": NO_STRINGS,
        "error": NO_TEXTS,
    }
    for name, values in wrong.items():
        yield from each(target, lambda v, name=name: wrap(good | {name: v}), prefix + name, values)


def transaction_cases() -> Iterator[Bad]:
    push = {"type": "push", "items": [{"queue": "new", "payload": 1}]}
    ack = {"type": "ack", "transactionId": "t", "partitionId": ID}
    unknown = {"type": "kv"}
    yield from acknowledgement(TRANSACTION, lambda a: {"operations": [push, a]}, "operations[1].", ack)
    # What is malformed is refused even where an earlier operation could not be done anyway.
    yield from acknowledgement(TRANSACTION, lambda a: {"operations": [unknown, a]}, "operations[1].", ack)
    for name in ("queue", "partition", "transactionId"):
        field = f"operations[1].items[0].{name}"
        yield from each(
            TRANSACTION,
            lambda v, name=name: {"operations": [ack, {"type": "push", "items": [{"queue": "new"} | {name: v}]}]},
            field,
            NO_NAMES | {"null": None},
        )
    yield from each(
        TRANSACTION,
        lambda v: {"operations": [push, ack | {"consumerGroup": v}]},
        "operations[1].consumerGroup",
        NO_LABELS,
    )
    yield from each(TRANSACTION, lambda v: {"operations": [push, {"type": v}]}, "operations[1].type", NO_STRINGS)
    yield from each(
        TRANSACTION,
        lambda v: {"operations": [push], "requiredLeases": [ID, v]},
        "requiredLeases[1]",
        NO_STRINGS | {"null": None},
    )
    yield post(TRANSACTION, {}, "operations", "missing")
    yield post(TRANSACTION, {"operations": []}, "operations", "empty")
    yield post(TRANSACTION, {"operations": {}}, "operations", "object")
    yield post(TRANSACTION, {"operations": [push, 1]}, "operations[1]", "number")
    yield post(TRANSACTION, {"operations": [push, {}]}, "operations[1].type", "missing")
    yield post(TRANSACTION, {"operations": [ack, {"type": "push"}]}, "operations[1].items", "missing")
    yield post(TRANSACTION, {"operations": [push, {"type": "ack", "partitionId": ID}]}, "operations[1].transactionId")
    yield post(TRANSACTION, {"operations": [push, {"type": "ack", "transactionId": "t"}]}, "operations[1].partitionId")
    yield post(TRANSACTION, {"operations": [push], "requiredLeases": "x"}, "requiredLeases", "text")
    key = {"op": "put", "ns": "n", "key": "k", "value": 1, "forever": True}
    timer = {"op": "schedule", "queue": "new", "timerKey": "k", "data": 1, "delayMs": 1}
    for name, good in (("kv", key), ("timers", timer)):
        yield post(TRANSACTION, {"operations": [push], name: {}}, name, "object")
        yield post(TRANSACTION, {"operations": [push], name: [good, 1]}, f"{name}[1]", "number")
        yield post(TRANSACTION, {"operations": [push], name: [good, good | {"op": "x"}]}, f"{name}[1].op", "unknown")
        for field in sorted(good.keys() - {"value", "data"}):
            less = {one: value for one, value in good.items() if one != field}
            told = {"forever": "ttlSeconds"}.get(field, field)
            yield post(TRANSACTION, {"operations": [push], name: [good, less]}, f"{name}[1].{told}", f"no {field}")
    for op in ("get", "getMany", "getPrefix"):
        reading = {"op": op, "ns": "n", "key": "k", "keys": ["k"], "prefix": "k"}
        yield post(TRANSACTION, {"operations": [push], "kv": [key, reading]}, "kv[1].op", op)


def trace_cases() -> Iterator[Bad]:
    good = {"transactionId": "t", "partitionId": ID, "data": {}}
    for name, values in {
        "transactionId": NO_NAMES | {"null": None},
        "partitionId": NO_UUIDS | {"null": None},
        "consumerGroup": NO_LABELS,
        "eventType": NO_LABELS,
    }.items():
        yield from each(TRACES, lambda v, name=name: good | {name: v}, name, values)
        if name in ("transactionId", "partitionId"):
            yield post(TRACES, {key: value for key, value in good.items() if key != name}, name, "missing")
    yield post(TRACES, {"transactionId": "t", "partitionId": ID}, "data", "missing")
    for about, names in {"number": 7, "flag": True, "object": {}}.items():
        yield post(TRACES, good | {"traceNames": names}, "traceNames", about)
    yield post(TRACES, good | {"traceNames": ["n"] * 101}, "traceNames", "101 names")
    for about, name in NO_NAMES.items():
        yield post(TRACES, good | {"traceNames": ["n", name]}, "traceNames[1]", about)
    for about in ("empty", "NUL", "256 characters"):
        yield post(TRACES, good | {"traceNames": NO_NAMES[about]}, "traceNames[0]", f"text {about}")


def lease_cases() -> Iterator[Bad]:
    yield from each(EXTEND, lambda v: {"seconds": v}, "seconds", NO_SECONDS | {"zero": 0})


def group_cases() -> Iterator[Bad]:
    yield from each(SUBSCRIPTION, lambda v: {"subscriptionTimestamp": v}, "subscriptionTimestamp", NO_MOMENTS)
    yield post(SUBSCRIPTION, {}, "subscriptionTimestamp", "missing")
    yield from each(SEEK, lambda v: {"timestamp": v}, "timestamp", NO_MOMENTS | {"null": None})
    yield from each(SEEK, lambda v: {"toEnd": True, "timestamp": v}, "timestamp", NO_MOMENTS)
    yield from each(SEEK, lambda v: {"toEnd": v}, "toEnd", {"text": "true", "number": 1, "array": []})
    yield post(SEEK, {}, "timestamp", "neither")
    yield post(SEEK, {"toEnd": False}, "timestamp", "neither")
    yield Bad("deleteMetadata", "DELETE", f"{GROUP}?deleteMetadata=maybe", field="deleteMetadata")
    yield Bad("deleteMetadata", "DELETE", f"{GROUP}/queues/q?deleteMetadata=2", field="deleteMetadata")


PATHS = {
    ("GET", "/api/v1/pop/queue/{}"): "queue",
    ("GET", "/api/v1/pop/queue/{}/partition/p"): "queue",
    ("GET", "/api/v1/pop/queue/q/partition/{}"): "partition",
    ("DELETE", "/api/v1/resources/queues/{}"): "queue",
    ("GET", "/api/v1/resources/queues/{}"): "queue",
    ("GET", "/api/v1/status/queues/{}"): "queue",
    ("DELETE", "/api/v1/queues/{}/clear"): "queue",
    ("GET", "/api/v1/consumer-groups/{}"): "group",
    ("GET", "/api/v1/explain/{}"): "queue",
    ("GET", "/api/v1/status/queues/{}/messages"): "queue",
    ("GET", f"/api/v1/messages/{ID}/{{}}"): "transactionId",
    ("DELETE", f"/api/v1/messages/{ID}/{{}}"): "transactionId",
    ("POST", f"/api/v1/messages/{ID}/{{}}/retry"): "transactionId",
    ("POST", f"/api/v1/messages/{ID}/{{}}/dlq"): "transactionId",
    ("GET", f"/api/v1/traces/{ID}/{{}}"): "transactionId",
    ("GET", "/api/v1/traces/by-name/{}"): "name",
    ("POST", "/api/v1/consumer-groups/g/queues/q/partitions/{}/seek"): "partition",
    ("DELETE", "/api/v1/consumer-groups/{}"): "group",
    ("DELETE", "/api/v1/consumer-groups/{}/queues/q"): "group",
    ("DELETE", "/api/v1/consumer-groups/g/queues/{}"): "queue",
    ("POST", "/api/v1/consumer-groups/{}/subscription"): "group",
    ("POST", "/api/v1/consumer-groups/{}/queues/q/seek"): "group",
    ("POST", "/api/v1/consumer-groups/g/queues/{}/seek"): "queue",
}
NO_PARTITION_ID = {
    ("GET", "/api/v1/messages/{}/t"),
    ("DELETE", "/api/v1/messages/{}/t"),
    ("POST", "/api/v1/messages/{}/t/retry"),
    ("POST", "/api/v1/messages/{}/t/dlq"),
    ("GET", "/api/v1/traces/{}/t"),
}
NOT_UTF8 = {"a byte": "%FF", "overlong": "%C0%80", "surrogate": "%ED%A0%80", "cut off": "a%C3", "later": "%C3%A9%FF"}
RAW = ("é".encode(), b"\xff", b"a%41\xc3", b"\x01")


def path_cases() -> Iterator[Bad]:
    for method, pattern in NO_PARTITION_ID:
        for wrong in ("x", ID[:-1], ID + "0", "%00"):
            yield Bad(f"{method} {pattern} {wrong}", method, pattern.format(wrong), field="partitionId")
    body = js({"subscriptionTimestamp": "2024-01-01", "toEnd": True})
    for (method, pattern), field in PATHS.items():
        for about, name in {"256 characters": "x" * 256, "wide": quote("é" * 256), "NUL": "a%00b"}.items():
            yield Bad(f"{method} {pattern} {about}", method, pattern.format(name), body, field)
        for about, name in NOT_UTF8.items():
            yield Bad(f"{method} {pattern} {about}", method, pattern.format(name), body)
        for raw in RAW:
            target = pattern.encode().replace(b"{}", raw)
            yield Bad(f"{method} {pattern} {raw!r}", method, target, body, code="bad_http")


NO_QUERY_INTEGERS = ("abc", "1.5", "1e400", "1e2", str(HUGE), str(-HUGE), "9" * 5000, "0x10", "--1", "+", "NaN", "true")
NO_QUERY_MOMENTS = tuple(v for k, v in NO_MOMENTS.items() if isinstance(v, str) and k != "empty")


def query_cases() -> Iterator[Bad]:
    for pop in (POP, f"{POP}/partition/p", "/api/v1/pop?namespace=n"):
        for name in ("batch", "timeout"):
            yield from query(pop, name, *NO_QUERY_INTEGERS, "%EF%BC%91", "1%00", "%201")
        yield from query(pop, "timeout", "-1", str(-(2**63)))
        for name in ("wait", "autoAck", "autopilot"):
            yield from query(pop, name, "maybe", "yes", "2", "-1", "tru", "%00")
        yield from query(pop, "conflation", "true")
        yield from query(pop, "consumerGroup", "x" * 256, "a%00b")
        yield from query(pop, "subscriptionMode", "banana", "NEW", "%00")
        yield from query(pop, "subscriptionFrom", *map(quote, NO_QUERY_MOMENTS))
    yield from query(POP, "partitions", *NO_QUERY_INTEGERS)
    for name in ("namespace", "task"):
        yield from query("/api/v1/pop", name, "x" * 256, "a%00b")
    yield Bad("no filter", "GET", "/api/v1/pop", field="namespace")
    yield Bad("empty filter", "GET", "/api/v1/pop?namespace=&task=", field="namespace")
    for name in ("limit", "offset"):
        yield from query(DLQ, name, *NO_QUERY_INTEGERS, "-1")
    for name in ("queue", "consumerGroup", "partition"):
        yield from query(DLQ, name, "x" * 256, "a%00b")
    for name in ("from", "to"):
        yield from query(DLQ, name, *map(quote, NO_QUERY_MOMENTS))
    for target in LISTINGS:
        for name in ("limit", "offset"):
            yield from query(target, name, *NO_QUERY_INTEGERS, "-1")
    for target in HISTORIES:
        for name in ("from", "to"):
            yield from query(target, name, *map(quote, NO_QUERY_MOMENTS))
        yield Bad(f"{target} backwards", "GET", f"{target}?from=2024-01-02&to=2024-01-01", field="from")
        if target != "/api/v1/messages":  # a page of them may be of any age
            yield Bad(f"{target} endless", "GET", f"{target}?from=2020-01-01&to=2024-01-01", field="from")
    for name in ("queue", "namespace", "task"):
        yield from query("/api/v1/status", name, "x" * 256, "a%00b")
    for name in ("queue", "partition", "ns", "namespace", "task"):
        yield from query("/api/v1/messages", name, "x" * 256, "a%00b")
    for name in ("partition", "consumerGroup", "group"):
        yield from query("/api/v1/explain/q", name, "x" * 256, "a%00b")
    yield from query("/api/v1/messages", "status", "done", "PENDING", "%00")
    yield from query("/api/v1/resources/queues", "search", "x" * 256, "a%00b")
    yield from query("/api/v1/status/analytics", "interval", "week", "HOUR", "%00")
    yield from query("/api/v1/status/analytics?from=2024-01-01&to=2024-03-01", "interval", "minute")
    yield from query("/api/v1/consumer-groups/lagging", "minLagSeconds", *NO_QUERY_INTEGERS, "-1")
    yield from query("/api/v1/consumer-groups/g", "limit", *NO_QUERY_INTEGERS, "-1")
    yield from query(POP, "consumerGroup", *NOT_UTF8.values())
    yield from query(POP, "unknown", *NOT_UTF8.values())
    for raw in RAW:
        yield Bad(f"query {raw!r}", "GET", POP.encode() + b"?consumerGroup=" + raw, code="bad_http")


def query(target: str, name: str, *values: str) -> Iterator[Bad]:
    sign = "&" if "?" in target else "?"
    for value in values:
        yield Bad(f"{target} {name}={value[:50]}", "GET", f"{target}{sign}{name}={value}", field=name)


NO_JSON = {
    "cut off": b'{"items":[{"queue":"new"}',
    "brace only": b"{",
    "word": b"nul",
    "single quotes": b"{'queue':'new'}",
    "trailing comma": b'{"queue":"new",}',
    "byte order mark": b'\xef\xbb\xbf{"queue":"new"}',
    "NaN": b'{"queue":"new","payload":NaN}',
    "Infinity": b'{"queue":"new","payload":-Infinity}',
    "leading zero": b'{"queue":"new","payload":01}',
    "control character": b'{"queue":"n\nw"}',
    "wrong escape": b'{"queue":"\\x41"}',
    "NUL byte": b'{"queue":"a\0b"}',
    "UTF-16": '{"queue":"new"}'.encode("utf-16"),
    "no UTF-8 in a value": b'{"queue":"\xff"}',
    "no UTF-8 in a key": b'{"queue":"new","\xff":1}',
    "no UTF-8 in a payload": b'{"items":[{"queue":"new","payload":"\xff"}]}',
    "overlong UTF-8": b'{"queue":"\xc0\x80"}',
    "surrogate as UTF-8": b'{"queue":"\xed\xa0\x80"}',
    "cut off UTF-8": b'{"queue":"\xc3"}',
    "deep nesting in an unknown key": b'{"unknown":' + DEEP + b"}",
    "deep objects in an unknown key": b'{"unknown":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "unclosed brackets in an unknown key": b'{"unknown":' + b"[" * 100_000,
    "surrogate in an unknown key": b'{"\\ud800":1}',
    "surrogate in an unknown value": b'{"unknown":"\\udfff"}',
}


def body_cases() -> Iterator[Bad]:
    for target in WITH_BODY:
        for about, body in NO_JSON.items():
            yield no_json(target, body, about)
        for body in (b"[]", b'"text"', b"1", b"true", b"1e400", DEEP):
            yield Bad(f"{target} {body[:10]!r}", "POST", target, body)
        if target != EXTEND:
            yield Bad(f"{target} null", "POST", target, b"null")
        if target not in (EXTEND, SEEK, SUBSCRIPTION):
            yield no_json(target, b"", "empty")
    for target, body in {PUSH: b'{"items":[{"queue":"new"}]}', CONFIGURE: b'{"queue":"new"}', EXTEND: b"{}"}.items():
        yield no_json(target, body + b" {}", "something behind")
    yield Bad("empty seek", "POST", SEEK, field="timestamp")
    yield Bad("empty subscription", "POST", SUBSCRIPTION, field="subscriptionTimestamp")


NO_PAYLOADS = {
    "deep array": DEEP,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "surrogate": b'"\\ud800"',
    "surrogate in a key": b'{"\\udc00":1}',
    "surrogate before text": b'"\\ud800abcdefgh"',
    "NaN": b"NaN",
    "leading zero": b"007",
    "wrong escape": b'"\\q"',
    "control character": b'"\t"',
}


def payload_cases() -> Iterator[Bad]:
    for about, payload in NO_PAYLOADS.items():
        item = b'{"queue":"new","payload":' + payload + b"}"
        yield no_json(PUSH, b'{"items":[' + item + b"]}", about)
        yield no_json(TRANSACTION, b'{"operations":[{"type":"push","items":[' + item + b"]}]}", about)
        yield no_json(
            TRACES, b'{"transactionId":"t","partitionId":"' + ID.encode() + b'","data":' + payload + b"}", about
        )
    yield Bad("nesting instead of items", "POST", PUSH, b'{"items":' + DEEP + b"}", "items[0]")
    yield Bad("nesting instead of a queue", "POST", CONFIGURE, b'{"queue":' + DEEP + b"}", "queue")
    yield Bad("nesting instead of options", "POST", CONFIGURE, b'{"queue":"new","options":' + DEEP + b"}", "options")


def route_cases() -> Iterator[Bad]:
    for target in (
        *("/nowhere", "/api/v1", "/api/v1/push/", "//api/v1/push", "/api/v1/stream/poll", "/API/V1/PUSH", "/%2e%2e/"),
        *("/api/v1/pop/queue/", "/api/v1/pop/queue//partition/p", "/api/v1/resources/queues/", "/api/v1/lease//extend"),
    ):
        yield Bad(target, "GET", target, code="not_found", status=404)
        yield Bad(target, "POST", target, b"{}", code="not_found", status=404)
    for method, target in (
        *(("GET", PUSH), ("PUT", PUSH), ("DELETE", PUSH), ("PATCH", PUSH), ("HEAD", PUSH), ("PUSH", PUSH)),
        *(("POST", POP), ("DELETE", POP), ("HEAD", POP), ("HEAD", f"{POP}/partition/p"), ("POST", DLQ)),
        *(("HEAD", "/api/v1/pop?namespace=n"), ("PUT", GROUP), ("POST", GROUP), ("PUT", SEEK), ("POST", "/health")),
    ):
        code = ("bad_http", 400) if method == "PUSH" else ("method_not_allowed", 405)
        yield Bad(f"{method} {target}", method, target, b"", None, *code)


def stream_cases() -> Iterator[Bad]:
    query = {"name": "n", "source_queue": "q", "config_hash": "h"}
    for name in query:
        yield from each(QUERIES, lambda v, name=name: query | {name: v}, name, NO_NAMES | {"null": None})
        yield post(QUERIES, {key: value for key, value in query.items() if key != name}, name, "missing")
    yield from each(QUERIES, lambda v: query | {"sink_queue": v}, "sink_queue", NO_LABELS)
    yield from each(QUERIES, lambda v: query | {"reset": v}, "reset", {"text": "true", "number": 1, "array": []})
    place = {"query_id": ID, "partition_id": ID}
    for target in (STATE, CYCLE):
        for name in place:
            yield from each(target, lambda v, name=name: place | {name: v}, name, NO_UUIDS | {"null": None})
            yield post(target, {key: value for key, value in place.items() if key != name}, name, "missing")
    no_keys = NO_TEXTS | {"empty": "", "long": "x" * 501}
    yield from each(STATE, lambda v: place | {"keys": ["k", v]}, "keys[1]", no_keys)
    yield from each(STATE, lambda v: place | {"key_prefix": v}, "key_prefix", NO_TEXTS)
    yield from each(STATE, lambda v: place | {"ripe_at_or_before": v}, "ripe_at_or_before", {"text": "5", "flag": True})
    operation = {"type": "upsert", "key": "k", "value": 1}
    yield from each(CYCLE, lambda v: place | {"state_ops": [operation | {"key": v}]}, "state_ops[0].key", no_keys)
    yield from each(CYCLE, lambda v: place | {"state_ops": [operation | {"type": v}]}, "state_ops[0].type", NO_STRINGS)
    for name in ("queue", "partition", "transactionId"):
        yield from each(
            CYCLE,
            lambda v, name=name: place | {"push_items": [{"queue": "new"} | {name: v}]},
            f"push_items[0].{name}",
            NO_NAMES | {"null": None},
        )
    yield from each(CYCLE, lambda v: place | {"consumer_group": v}, "consumer_group", NO_LABELS)
    yield from each(CYCLE, lambda v: place | {"ack": {"transactionId": "t", "leaseId": v}}, "ack.leaseId", NO_STRINGS)
    yield from each(CYCLE, lambda v: place | {"ack": {"transactionId": "t", "error": v}}, "ack.error", NO_TEXTS)
    yield from each(CYCLE, lambda v: place | {"release_lease": v}, "release_lease", {"text": "true", "number": 1})


TOPICS: dict[str, Callable[[], Iterator[Bad]]] = {
    "configure": configure_cases,
    "push": push_cases,
    "ack": ack_cases,
    "ack batch": ack_batch_cases,
    "transaction": transaction_cases,
    "traces": trace_cases,
    "leases": lease_cases,
    "groups": group_cases,
    "paths": path_cases,
    "queries": query_cases,
    "bodies": body_cases,
    "payloads": payload_cases,
    "routes": route_cases,
    "streams": stream_cases,
}


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A caller's mistake is no event for the operator."""
    yield
    assert loud(caplog) == []


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings, errors and tracebacks."""
    records = caplog.get_records("call")
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING or record.exc_info]


@pytest.fixture
async def wire(server: Server) -> AsyncIterator[Wire]:
    async with connect(server.address) as wire:
        yield wire


@pytest.fixture
async def tables(queen: Queen, sql: asyncpg.Connection) -> Callable[[], Any]:
    """What is stored: something of everything, so that a wrong write or delete shows."""
    await queen.configure("q", retryLimit=0)
    await queen.push("q", "t", "u", "v", partition="p")
    popped = await queen.pop("q", consumerGroup="g", batch=2, subscriptionMode="all")
    await queen.ack(popped[0], "dlq", error="broken")
    await queen.trace(popped[0], {}, traceNames=["n"])
    # Not the figures that services write by themselves when the time has come, nor the audit log of refusals.
    names = await sql.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'queen' "
        "AND tablename NOT IN ('activity', 'server_samples', 'page_statistics', 'queue_statistics', "
        "'group_statistics', 'audit_log') ORDER BY 1"
    )
    statement = " UNION ALL ".join(f"SELECT '{n}', t::text FROM queen.{n} t" for [n] in names)

    async def contents() -> list[asyncpg.Record]:
        return sorted(await sql.fetch(statement))

    return contents


def check_refusal(answer: Answer, bad: Bad) -> None:
    assert answer.status == bad.status, answer.body
    if bad.method == "HEAD":
        return
    assert answer.headers[b"content-type"] == b"application/json"
    refusal = answer.json()
    assert refusal.keys() == {"error", "code"} | ({"field"} if bad.field else set())
    assert isinstance(refusal["error"], str)
    assert refusal["error"]
    assert refusal["code"] == bad.code
    assert refusal.get("field") == bad.field


@pytest.mark.parametrize("topic", TOPICS)
async def test_bad_input_is_refused_and_writes_nothing(
    topic: str, server: Server, tables: Callable[[], Any], subtests: pytest.Subtests
) -> None:
    before = await tables()
    for bad in TOPICS[topic]():
        async with connect(server.address) as wire:
            with subtests.test(bad.about):
                check_refusal(await wire.ask(bad.method, bad.target, bad.body), bad)
                assert await tables() == before
                if bad.code != "bad_http":
                    assert (await wire.ask("GET", "/health")).status == 200


async def test_the_answer_to_a_wrong_method_names_the_right_ones(wire: Wire) -> None:
    assert (await wire.ask("PUT", PUSH)).headers[b"allow"] == b"OPTIONS, POST"
    assert (await wire.ask("HEAD", POP)).headers[b"allow"] == b"GET, OPTIONS"


# What is not quite right, but decided


@pytest.mark.parametrize(
    ("batch", "delivered"), [("0", 1), ("-5", 1), (str(-(2**63)), 1), (str(2**63 - 1), 3), ("", 1)]
)
async def test_the_batch_of_a_pop_is_cut_to_what_is_possible(queen: Queen, batch: str, delivered: int) -> None:
    await queen.push("q", 1, 2, 3)
    assert len(await queen.pop("q", batch=batch)) == delivered


@pytest.mark.parametrize(("partitions", "claimed"), [("0", 1), ("-5", 1), (str(2**63 - 1), 2), ("", 1)])
async def test_the_partitions_of_a_pop_are_cut_to_what_is_possible(queen: Queen, partitions: str, claimed: int) -> None:
    await queen.push("q", 1, partition="a")
    await queen.push("q", 2, partition="b")
    assert len(await queen.pop("q", batch=10, partitions=partitions)) == claimed


@pytest.mark.parametrize("lease", ["no-uuid", "\0", ID, "x" * 5000, "\U0001f40c"])
async def test_an_ack_with_a_lease_that_never_was_is_answered_like_an_expired_one(queen: Queen, lease: str) -> None:
    await queen.push("q", 1)
    [message] = await queen.pop("q")
    result = await queen.ack(message, leaseId=lease)
    assert (result["success"], result["error"]) == (False, "Invalid or expired lease")
    [batched] = await queen.ack_batch([message], leaseId=lease)
    assert (batched["success"], batched["error"]) == (False, "Invalid or expired lease")
    assert (await queen.ack(message))["success"] is True


@pytest.mark.parametrize("status", ["done", "COMPLETED", "\0", "x" * 5000])
async def test_an_unknown_status_fails_alone(queen: Queen, status: str) -> None:
    await queen.push("q", 1, 2)
    messages = await queen.pop("q", batch=2)
    unknown, known = await queen.ack_batch(messages, status, "completed")
    assert unknown["success"] is False
    assert unknown["error"].startswith("Unknown status")
    assert known["success"] is True


@pytest.mark.parametrize("trace", ["", "no-uuid", "\0", "x" * 5000, ID[:-1]])
async def test_a_trace_id_that_is_no_uuid_is_dropped(queen: Queen, trace: str) -> None:
    [result] = await queen.push_items({"queue": "q", "traceId": trace})
    assert (result["status"], result["trace_id"]) == ("queued", None)
    [message] = await queen.pop("q")
    assert message["traceId"] is None


async def test_a_lease_that_never_was_cannot_be_extended(queen: Queen) -> None:
    for lease in (ID, "no-uuid", "%00", "x" * 5000):
        lost = await queen.extend(lease, status=404)
        assert (lost["success"], lost["error"], lost["code"]) == (False, "Lease not found", "lease_not_found")


async def test_what_a_transaction_cannot_do_is_told_with_200(queen: Queen, sql: asyncpg.Connection) -> None:
    push = {"type": "push", "items": [{"queue": "q"}]}
    for operation in ({"type": "kv"}, {"type": ""}, {"type": "\0"}):
        result = await queen.transact(push, operation)
        assert (result["success"], result["results"]) == (False, [])
        assert result["error"] == f"Unknown operation type: {operation['type']}"
    assert await stored(sql, "q") == 0


async def test_of_a_repeated_key_the_last_one_counts_and_all_are_checked(wire: Wire, queen: Queen) -> None:
    twice = b'{"items":[],"items":[{"queue":"a","queue":"b","payload":1,"payload":2}]}'
    answer = await wire.ask("POST", PUSH, twice)
    assert (answer.status, [result["queueName"] for result in answer.json()]) == (201, ["b"])
    assert [message["data"] for message in await queen.pop("b")] == [2]
    assert (await wire.ask("POST", PUSH, b'{"items":[{"queue":7,"queue":"b"}]}')).status == 400
    assert (await wire.ask("POST", PUSH, b'{"items":[{"queue":"b","queue":7}]}')).status == 400


async def test_names_of_255_characters_of_any_script_work_everywhere(queen: Queen) -> None:
    for letter in ("x", "é", "\U0001f40c", "'", '"', "\\", "%", "/", " ", "\x01", "\u2028"):
        name = letter * 255
        await queen.configure(name, namespace=name, task=name)
        await queen.push_items({"queue": name, "partition": name, "transactionId": name})
        path = quote(name, safe="")
        [message] = await queen.pop(path, path, consumerGroup=name)
        assert (message["queue"], message["partition"], message["transactionId"]) == (name, name, name)
        assert (await queen.ack(message, "dlq", error=name))["success"] is True
        [dead] = await queen.dead_letters(queue=name, partition=name, consumerGroup=name)
        assert dead["errorMessage"] == name
        assert (await queen.delete_group(path, path))["queueName"] == name
        assert (await queen.delete_queue(path))["existed"] is True


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "1970-01-01", "20240229T01"])
async def test_every_moment_of_the_calendar_can_be_named(queen: Queen, moment: str) -> None:
    await queen.push("q", 1)
    await queen.pop("q", consumerGroup="g", subscriptionFrom=moment)
    assert (await queen.seek("g", "q", timestamp=moment))["success"] is True
    assert (await queen.subscribe_from("g", moment))["success"] is True
    assert await queen.dead_letters(**{"from": moment, "to": moment}) == []
    for listing in ("consumer-groups", "consumer-groups/g", "resources/queues", "status/queues/q"):
        answer = await queen.http.get(f"/api/v1/{listing}")
        assert answer.status_code == 200, f"{listing}: {answer.text}"


async def test_every_option_at_its_limit_works(queen: Queen) -> None:
    seconds = ("ttl", "retentionSeconds", "completedRetentionSeconds", "maxWaitTimeSeconds", "leaseTime")
    counts = ("maxSize", "retryLimit", "retryDelay", "priority")
    options = dict.fromkeys(seconds, MAX_SECONDS) | dict.fromkeys(counts, MAX_COUNT)
    echoed = await queen.configure("q", namespace="n", retentionEnabled=True, **options)
    assert echoed["options"].items() >= options.items()
    await queen.push("q", 1)
    [message] = await queen.pop_matching(namespace="n")
    await queen.extend(message["leaseId"], MAX_SECONDS)
    assert (await queen.ack(message, "failed"))["success"] is True
    await queen.configure("q", delayedProcessing=MAX_SECONDS, windowBuffer=MAX_SECONDS)
    await queen.push("q", 2)
    assert await queen.pop("q") == []


# Too much


class TestLimits:
    MAX_BODY = 10_000

    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(limits={"max_items": 3}, http={"max_body_bytes": self.MAX_BODY}, **QUIET)

    def body_of(self, size: int) -> bytes:
        empty = js({"items": [{"queue": "q", "payload": ""}]})
        return empty.replace(b'""', b'"%b"' % (b"x" * (size - len(empty))))

    async def test_a_body_of_the_limit_is_taken(self, wire: Wire) -> None:
        assert (await wire.ask("POST", PUSH, self.body_of(self.MAX_BODY))).status == 201

    async def test_a_body_over_the_limit_is_refused(self, server: Server, sql: asyncpg.Connection, wire: Wire) -> None:
        answer = await wire.ask("POST", PUSH, self.body_of(self.MAX_BODY + 1))
        check_refusal(answer, Bad("", "POST", PUSH, code="too_large", status=413))
        assert await wire.closed()
        async with connect(server.address) as other:
            assert (await other.ask("GET", "/health")).status == 200
        assert await stored(sql, "q") == 0

    async def test_a_body_in_chunks_over_the_limit_is_refused(self, wire: Wire) -> None:
        await wire.send("POST", PUSH, b"Transfer-Encoding: chunked")
        for _ in range(3):
            wire.write(b"1388\r\n" + b" " * 5000 + b"\r\n")
        check_refusal(await wire.answer(), Bad("", "POST", PUSH, code="too_large", status=413))

    async def test_too_many_items_are_refused(self, wire: Wire, tables: Callable[[], Any]) -> None:
        push = {"type": "push", "items": [{"queue": "new"}]}
        ack = {"type": "ack", "transactionId": "t", "partitionId": ID}
        before = await tables()
        for target, body, field in (
            (PUSH, {"items": push["items"] * 4}, "items"),  # type: ignore[operator]
            (ACK_BATCH, {"acknowledgments": [ack] * 4}, "acknowledgments"),
            (TRANSACTION, {"operations": [ack] * 4}, "operations"),
            (TRANSACTION, {"operations": [{"type": "push", "items": []}] * 4}, "operations"),
            (TRANSACTION, {"operations": [push | {"items": [{"queue": "new"}] * 4}]}, "operations"),
            (TRANSACTION, {"operations": [push | {"items": [{"queue": "new"}] * 3}, ack]}, "operations"),
            (TRANSACTION, {"operations": [push], "requiredLeases": [ID] * 4}, "requiredLeases"),
        ):
            answer = await wire.ask("POST", target, js(body))
            check_refusal(answer, Bad("", "POST", target, field=field, code="too_large", status=413))
            assert await tables() == before

    async def test_as_many_items_as_allowed_are_taken(self, wire: Wire) -> None:
        items = [{"queue": "q", "payload": n} for n in range(3)]
        assert (await wire.ask("POST", PUSH, js({"items": items}))).status == 201
        answer = await wire.ask("POST", TRANSACTION, js({"operations": [{"type": "push", "items": items}]}))
        assert answer.json()["success"] is True

    async def test_a_pop_and_a_listing_give_no_more_than_allowed(self, queen: Queen) -> None:
        for _ in range(2):
            await queen.push("q", 1, 2, 3)
        messages = await queen.pop("q", batch=1000)
        assert len(messages) == 3
        await queen.ack_batch(messages, "dlq")
        await queen.ack_batch(await queen.pop("q", batch=1000), "dlq")
        page = await queen.dead_letter_page(limit=1000)
        assert (len(page["messages"]), page["pagination"]["limit"], page["total"]) == (3, 3, 6)


async def test_the_default_limit_of_a_body_is_16_mib(server: Server) -> None:
    body = b'{"items":[' + b" " * (16 * 1024 * 1024 - 12) + b"]}"
    async with connect(server.address) as wire:
        assert (await wire.ask("POST", PUSH, body)).status == 201
        answer = await wire.ask("POST", PUSH, body + b" ")
        check_refusal(answer, Bad("", "POST", PUSH, code="too_large", status=413))


# One bad request harms only itself


async def test_bad_pushes_among_good_ones_fail_alone(queen: Queen) -> None:
    bad_items = (
        {"queue": "a\0b"},
        {"queue": "q", "partition": ""},
        {"queue": "q", "transactionId": "x" * 256},
        {"queue": "q", "payload": "\ud800"},
        {"queue": 7},
    )

    async def push(item: Json) -> int:
        return (await queen.http.post(PUSH, content=js({"items": [item]}))).status_code

    good = [{"queue": "q", "partition": f"p{n % 5}", "payload": n} for n in range(100)]
    mixed = [item for n in range(100) for item in (good[n], bad_items[n % len(bad_items)])]
    statuses = await asyncio.gather(*map(push, mixed))
    assert statuses == [201, 400] * 100
    delivered = [message["data"] for message in await queen.drain("q", partitions=5)]
    assert sorted(delivered) == list(range(100))


async def test_a_push_that_the_database_refuses_fails_alone(
    queen: Queen, server: Server, sql: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await refuse_in_database(sql, "messages", "convert_from(NEW.payload, 'UTF8') = '\"guilty\"'")
    payloads = [*range(50), "guilty", *range(50, 99), "guilty"]

    async def push(payload: Any) -> int:
        item = {"queue": "q", "partition": f"p{len(str(payload))}", "payload": payload}
        return (await queen.http.post(PUSH, json={"items": [item]})).status_code

    statuses = await asyncio.gather(*map(push, payloads))
    assert dict(zip(payloads, statuses, strict=True)) == dict.fromkeys(range(99), 201) | {"guilty": 503}
    lane = server.broker.lanes["push"]
    assert lane.calls < lane.requests == 99
    assert sorted(message["data"] for message in await queen.drain("q", partitions=5)) == list(range(99))
    expect_complaints(caplog)


async def test_an_ack_that_the_database_refuses_fails_alone(
    queen: Queen, sql: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await refuse_in_database(sql, "dead_letter_queue", "NEW.error_message = 'guilty'")
    await queen.push_items(*({"queue": "q", "partition": f"p{n}", "payload": n} for n in range(40)))
    messages = sorted(await queen.pop("q", batch=40, partitions=40), key=lambda message: message["data"])

    async def ack(message: Json) -> int:
        error = "guilty" if message["data"] == 20 else "innocent"
        names = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
        return (await queen.http.post(ACK, json=names | {"status": "dlq", "error": error})).status_code

    statuses = await asyncio.gather(*map(ack, messages))
    assert statuses == [200] * 20 + [503] + [200] * 19
    dead = await queen.dead_letters("q")
    assert sorted(letter["data"] for letter in dead) == [n for n in range(40) if n != 20]
    expect_complaints(caplog)


async def refuse_in_database(sql: asyncpg.Connection, table: str, condition: str) -> None:
    """Let every statement fail that inserts such a row."""
    await sql.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'guilty'; END $$;"
        f"CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON queen.{table} FOR EACH ROW WHEN ({condition})"
        "EXECUTE FUNCTION refuse()"
    )


def expect_complaints(caplog: pytest.LogCaptureFixture) -> None:
    """What only the database finds, and nobody has listed, is logged."""
    assert set(loud(caplog)) == {"statement failed: RaiseError (P0001): guilty"}
    caplog.clear()


EXTREMES = (
    "0001-01-01T17:28:00+17:28",
    "0001-01-01T00:00:00+17:28",
    "9999-12-31T06:31:59.999999-17:28",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-12:00",
)


@pytest.mark.parametrize("moment", EXTREMES)
async def test_the_first_and_the_last_moment_there_are_break_nothing(queen: Queen, moment: str) -> None:
    """They stand for infinity on their way to the database, and come back as such."""
    http = queen.http
    await queen.push("q", 1)
    given = {"consumerGroup": "g", "subscriptionFrom": moment}
    statuses = {(await http.get(POP, params=given)).status_code}
    statuses.add((await http.get(f"{POP}/partition/Default", params=given | {"consumerGroup": "h"})).status_code)
    for path, body in (
        (SUBSCRIPTION, {"subscriptionTimestamp": moment}),
        (SEEK, {"timestamp": moment}),
        (f"{GROUP}/queues/q/partitions/Default/seek", {"timestamp": moment}),
    ):
        statuses.add((await http.post(path, json=body)).status_code)
    document = (await http.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        names = {p["name"] for p in methods.get("get", {}).get("parameters", ())} & {"from", "to"}
        target = path.replace("{queue}", "q").replace("{queueName}", "q").replace("{group}", "g").replace("{name}", "n")
        for name in names:
            statuses.add((await http.get(target, params={name: moment})).status_code)
    assert statuses <= {200, 204, 400}
    for path in (*LISTINGS, GROUP, "/api/v1/consumer-groups/lagging", "/api/v1/explain/q"):
        answer = await http.get(path)
        assert answer.status_code == 200, (path, answer.text)


async def test_moments_that_were_stored_by_hand_break_no_listing(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", 1)
    for group in "ab":
        await queen.pop("q", consumerGroup=group)
    for moment in ("-infinity", "infinity", "0044-03-15 12:00:00+00 BC", "20000-01-01 00:00:00+00"):
        await sql.execute(f"UPDATE queen.consumer_groups SET since = '{moment}'")
        for path in ("/api/v1/consumer-groups", "/api/v1/consumer-groups/a", "/api/v1/explain/q"):
            answer = await queen.http.get(path)
            assert answer.status_code == 200, (path, moment, answer.text)


@pytest.mark.parametrize("moment", ["-infinity", "infinity", "0044-03-15 12:00:00+00 BC", "20000-01-01 00:00:00+00"])
async def test_a_message_from_before_or_after_all_time_is_refused(
    queen: Queen, sql: asyncpg.Connection, moment: str
) -> None:
    """All that follow in its partition would have to be as late."""
    await queen.push("q", 1)
    with pytest.raises(asyncpg.PostgresError, match="created_at"):
        await sql.execute(
            "INSERT INTO queen.messages (partition_id, payload, created_at) "
            f"SELECT id, '2', '{moment}' FROM queen.partitions"
        )
