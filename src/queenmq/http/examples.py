"""Examples of the verbs in the OpenAPI document: a request and its answer, by the name of the operation.

A request of any other route is made from its schema, by `reference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from queenmq.core.options import QueueOptions

_MESSAGE: Final = "0190a4f2-7c3e-7b6a-9d5e-2f1c3b4a5d6e"
_PARTITION: Final = "0190a4f2-7c3e-7111-8d5e-2f1c3b4a5d6f"
_QUEUE: Final = "0190a4f2-7c3e-7222-8d5e-2f1c3b4a5d70"
_LEASE: Final = "0190a4f2-8a11-7c43-a2b0-6d5e4f3c2b1a"
_TRANSACTION: Final = "0190a4f2-8b22-7d54-b3c1-7e6f5a4d3c2b"
_AT: Final = "2026-01-02T09:00:00.000Z"
_LATER: Final = "2026-01-02T09:01:00.000Z"


class Example(NamedTuple):
    """The body of a request, None if it has none, and that of a good answer."""

    body: Any
    answer: Any


_POPPED: Final = Example(
    None,
    {
        "success": True,
        "queue": "orders",
        "partition": "customer-17",
        "partitionId": _PARTITION,
        "leaseId": _LEASE,
        "consumerGroup": "billing",
        "partitionsClaimed": 1,
        "messages": [
            {
                "id": _MESSAGE,
                "transactionId": "order-1",
                "traceId": None,
                "data": {"order": 1},
                "producerSub": None,
                "createdAt": _AT,
                "partitionId": _PARTITION,
                "partition": "customer-17",
                "offset": 1,
                "leaseId": _LEASE,
                "consumerGroup": "billing",
                "queue": "orders",
                "retryCount": 0,
                "headers": {"country": "IT"},
            }
        ],
    },
)
_ACKED: Final = {
    "index": 0,
    "transactionId": "order-1",
    "success": True,
    "error": None,
    "queueName": "orders",
    "partitionName": "customer-17",
    "leaseReleased": True,
    "dlq": False,
}
_OF_MESSAGE: Final = {"transactionId": "order-1", "partitionId": _PARTITION, "leaseId": _LEASE}

EXAMPLES: Final[Mapping[str, Example]] = {
    "push": Example(
        {
            "items": [
                {
                    "queue": "orders",
                    "partition": "customer-17",
                    "payload": {"order": 1},
                    "transactionId": "order-1",
                    "headers": {"country": "IT"},
                }
            ]
        },
        [
            {
                "index": 0,
                "status": "queued",
                "queueName": "orders",
                "transaction_id": "order-1",
                "transactionId": "order-1",
                "message_id": _MESSAGE,
                "messageId": _MESSAGE,
                "partition_id": _PARTITION,
                "partitionId": _PARTITION,
                "trace_id": None,
                "offset": 1,
            }
        ],
    ),
    "pop_queue": _POPPED,
    "pop_partition": _POPPED,
    "pop_matching": _POPPED,
    "ack": Example(_OF_MESSAGE | {"consumerGroup": "billing", "status": "completed"}, [_ACKED]),
    "ack_batch": Example(
        {
            "consumerGroup": "billing",
            "acknowledgments": [_OF_MESSAGE | {"status": "failed", "error": "the bank was closed"}],
        },
        [_ACKED],
    ),
    "extend_lease": Example(
        {"seconds": 60},
        {
            "leaseId": _LEASE,
            "success": True,
            "renewed": True,
            "error": None,
            "newExpiresAt": _LATER,
            "expiresAt": _LATER,
            "lease_expires_at": _LATER,
        },
    ),
    "finish_lease": Example(
        {
            "status": "completed",
            "except": [{"transactionId": "order-2", "status": "failed", "error": "the bank was closed"}],
        },
        {
            "leaseId": _LEASE,
            "success": True,
            "error": None,
            "messages": 10,
            "dlq": 0,
            "except": [{"index": 0, "transactionId": "order-2", "success": True, "error": None, "dlq": False}],
        },
    ),
    "transaction": Example(
        {
            "operations": [
                {
                    "type": "ack",
                    "transactionId": "order-1",
                    "partitionId": _PARTITION,
                    "leaseId": _LEASE,
                    "consumerGroup": "billing",
                    "status": "completed",
                },
                {
                    "type": "push",
                    "items": [{"queue": "invoices", "partition": "customer-17", "payload": {"order": 1}}],
                },
            ],
            "requiredLeases": [_LEASE],
        },
        {
            "transactionId": _TRANSACTION,
            "success": True,
            "results": [
                {
                    "type": "ack",
                    "index": 0,
                    "success": True,
                    "transactionId": "order-1",
                    "error": None,
                    "dlq": False,
                },
                {
                    "type": "push",
                    "index": 1,
                    "success": True,
                    "transactionId": "0190a4f2-8b22-7d55-8a00-1b2c3d4e5f60",
                    "messageId": _MESSAGE,
                    "partitionId": _PARTITION,
                    "queueName": "invoices",
                    "offset": 1,
                },
            ],
        },
    ),
    "seek": Example(
        {"timestamp": _AT},
        {
            "success": True,
            "consumerGroup": "billing",
            "queueName": "orders",
            "seekToEnd": False,
            "targetTimestamp": _AT,
            "partitionsUpdated": 12,
        },
    ),
    "seek_partition": Example(
        {"toEnd": True},
        {
            "success": True,
            "consumerGroup": "billing",
            "queueName": "orders",
            "partitionName": "customer-17",
            "updated": True,
            "cursorMovedTo": 42,
        },
    ),
    "change_timers": Example(
        {
            "operations": [
                {
                    "op": "schedule",
                    "queue": "orders",
                    "timerKey": "reminder-17",
                    "delayMs": 60_000,
                    "data": {"order": 1},
                }
            ]
        },
        {
            "results": [
                {
                    "ok": True,
                    "status": "scheduled",
                    "queue": "orders",
                    "timerKey": "reminder-17",
                    "txn": "0190a4f2-8b22-7d56-8a00-1b2c3d4e5f61",
                    "messageId": _MESSAGE,
                    "deliverAt": _LATER,
                }
            ]
        },
    ),
    "keys": Example(
        {"operations": [{"op": "put", "ns": "carts", "key": "17", "value": {"items": 3}, "forever": True}]},
        {"results": [{"applied": True, "key": "17", "version": 1, "updatedAt": _AT, "expiresAt": None}]},
    ),
    "locks": Example(
        {"operations": [{"op": "acquire", "name": "daily-report", "owner": "worker-3", "ttlSeconds": 60}]},
        {
            "results": [
                {
                    "acquired": True,
                    "already": False,
                    "slot": 0,
                    "token": 7,
                    "owner": "worker-3",
                    "guard": {"op": "check", "ns": "lock:daily-report", "key": "0", "expect": 7, "required": True},
                }
            ]
        },
    ),
    "fetch_messages": Example(
        {"entries": [{"queue": "orders", "partition": "customer-17", "offset": 1, "limit": 100}]},
        {
            "entries": [
                {
                    "queue": "orders",
                    "partition": "customer-17",
                    "records": [
                        {
                            "offset": 1,
                            "id": _MESSAGE,
                            "transactionId": "order-1",
                            "payload": {"order": 1},
                            "ts": _AT,
                            "traceId": None,
                            "producerSub": None,
                            "headers": {"country": "IT"},
                        }
                    ],
                    "highWatermark": 2,
                    "logStartOffset": 1,
                    "nextOffset": 2,
                }
            ]
        },
    ),
    "configure": Example(
        {"queue": "orders", "namespace": "shop", "options": {"leaseTime": 60, "retryLimit": 5}},
        {
            "configured": True,
            "queueId": _QUEUE,
            "partitionId": _PARTITION,
            "queue": "orders",
            "namespace": "shop",
            "task": "",
            "options": msgspec.to_builtins(QueueOptions(lease_time=60, retry_limit=5).echo()),
        },
    ),
}
