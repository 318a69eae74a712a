"""One module for each command of `queen`, with its name; each defines `command`."""

from __future__ import annotations

from typing import Final

KNOWN: Final = {
    "serve": "Run the server.",
    "push": "Push messages from the command line or from a file.",
    "pop": "Pop messages, and optionally acknowledge them.",
    "tail": "Print messages as they are pushed, without consuming them.",
    "ack": "Acknowledge messages that were popped.",
    "queues": "List, show, create, set, clear and delete queues.",
    "partitions": "List partitions and how many messages they hold.",
    "groups": "List, show and delete consumer groups.",
    "messages": "List, show, retry, dead-letter and delete messages.",
    "dlq": "List, redrive and purge dead letters.",
    "policies": "Set what queues and groups do with messages that fail.",
    "timers": "List, set and cancel messages that are pushed later.",
    "outbox": "Attach tables of an application to queues.",
    "kv": "List, get, put and delete values under keys.",
    "traces": "Show the traces that consumers recorded for messages.",
    "operations": "List, retry and cancel operations of the operation queue.",
    "journal": "List, show, retry and export quarantined records of a journal.",
    "seek": "Move a consumer group, to replay or skip messages.",
    "explain": "Explain why a group gets no messages, and what to do.",
    "token": "Make, list and revoke tokens.",
    "schema": "Give queues a schema, and let pushes be checked.",
    "quota": "Limit what the queues of a namespace may store.",
    "audit": "Show who has changed or was refused what.",
    "status": "Show in one screen how the server, its queues and groups are.",
    "cluster": "List the servers of the cluster and how busy they are.",
    "maintenance": "Switch pushes or pops off and on again, on every server.",
    "apply": "Create and change queues as a file declares them.",
    "top": "Show rates, lag and waiting consumers live.",
    "doctor": "Check the installation and say how to repair it.",
    "mcp": "Serve MCP for assistants: explain, lag, search, dead letters, redrive.",
    "admin": "Check and repair the tables of the database.",
    "db": "Upgrade the schema of the database, or show how to connect to the bundled PostgreSQL.",
    "verify": "Check that servers keep their promises, by a history of requests.",
    "bench": "Measure throughput and latency.",
    "pipeline": "Run Spark jobs: archive, replay, window, audit; and declared pipelines.",
    "completion": "Print the shell completion script.",
}
