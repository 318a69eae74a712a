"""A database of Queen as tests fill it and look at it: plain SQL, no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from queenmq.storage.statements import versioned


@dataclass
class Db:
    url: str
    connection: psycopg.Connection[Any]

    def sql(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(versioned(query), arguments)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *arguments: object) -> Any:
        [(value,)] = self.sql(query, *arguments)
        return value

    def make(self, queue: str, **options: object) -> None:
        self.sql("INSERT INTO queen.queues (name) VALUES (%s) ON CONFLICT DO NOTHING", queue)
        for name, value in options.items():
            self.connection.execute(f"UPDATE queen.queues SET {name} = %s WHERE name = %s", (value, queue))

    def fill(self, queue: str, partitions: int, each: int, padding: int = 0, first: int = 0) -> None:
        """`each` messages more in each of p0, p1, …; payload {"p": 3, "n": 17}, transaction id its offset."""
        self.make(queue)
        self.sql(
            "INSERT INTO queen.partitions (queue_id, name) SELECT q.id, 'p' || n FROM queen.queues q, "
            "generate_series(%s::int, %s::int) n WHERE q.name = %s ON CONFLICT DO NOTHING",
            first,
            first + partitions - 1,
            queue,
        )
        self.sql(
            'INSERT INTO queen.messages (partition_id, "offset", transaction_id, payload) '
            "SELECT p.id, l.last_offset + n, (l.last_offset + n)::text, convert_to(format("
            '\'{"p": %%s, "n": %%s, "pad": "%%s"}\', substr(p.name, 2), l.last_offset + n, '
            "repeat('x', %s::int)), 'UTF8') "
            "FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id "
            "JOIN queen.partition_lookup l ON l.partition_id = p.id, generate_series(1, %s::int) n "
            "WHERE q.name = %s AND substr(p.name, 2)::int BETWEEN %s::int AND %s::int",
            padding,
            each,
            queue,
            first,
            first + partitions - 1,
        )

    def delete_message(self, partition: str, transaction_id: str) -> None:
        """What `queen messages delete` does."""
        assert self.one(
            "SELECT queen.delete_message(id, %s) FROM queen.partitions WHERE name = %s", transaction_id, partition
        )

    def count(self, queue: str) -> int:
        return self.one(
            "SELECT count(*) FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
            "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = %s",
            queue,
        )

    def partitions(self, queue: str, what: str = "convert_from(m.payload, 'UTF8')::json") -> dict[str, list[Any]]:
        """What each partition holds, in the order of the offsets."""
        found = self.sql(
            f'SELECT p.name, array_agg({what} ORDER BY m."offset") FROM queen.messages m '
            "JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id "
            "WHERE q.name = %s GROUP BY p.name",
            queue,
        )
        return dict(found)

    def assert_healthy(self, queue: str) -> None:
        """Offsets from 1 without gaps, heads in step, nothing left in the staging table."""
        for name, offsets in self.partitions(queue, 'm."offset"').items():
            assert offsets == list(range(1, len(offsets) + 1)), name
        assert self.sql("SELECT * FROM queen.stale_lookup()") == []

    def assert_copied(self, source: str, target: str) -> None:
        """Every message of the source is in the same partition of the target, once and in order."""
        assert self.partitions(target) == self.partitions(source)
        self.assert_healthy(target)
