"""One module a command of `queen`, named after it; each has a `command`."""

from __future__ import annotations

from typing import Final

KNOWN: Final = {
    "serve": "Run the server.",
    "push": "Push messages, from the command line or from a file.",
    "pop": "Pop messages, and acknowledge them if asked to.",
    "tail": "Follow a queue live, without disturbing its groups.",
    "ack": "Acknowledge messages that were popped.",
    "queues": "List, show, create, set, clear and delete queues.",
    "partitions": "List partitions and what is in them.",
    "groups": "List, show and forget consumer groups.",
    "messages": "List, show, retry, bury and delete messages.",
    "dlq": "List, redrive and purge dead letters.",
    "traces": "Show what consumers left at messages.",
    "operations": "Look at the operation queue and intervene.",
    "seek": "Move a consumer group: replay, or skip.",
    "explain": "Say why nothing is delivered, and what to do.",
    "top": "Watch rates, lag and waiters live.",
    "doctor": "Check the set-up and say what to do.",
    "admin": "Check and mend what the database keeps.",
    "db": "About the bundled PostgreSQL.",
    "bench": "Measure throughput and latency.",
    "pipeline": "Jobs on Spark: archive, replay, window, audit.",
    "completion": "Print the completion script for a shell.",
}
