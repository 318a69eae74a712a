"""Parquet files of bounded size, one open a day, in a task of the job archive."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from queenmq.pipeline.lake import File, Lake, folder_of

# More days than this in one slice: the fullest file is closed.
MOST_OPEN: Final = 8
COMPRESSION: Final = "zstd"
LEVEL: Final = 3
ROWS_PER_GROUP: Final = 50_000


@dataclass
class _Day:
    batches: list[Any] = field(default_factory=list)
    bytes: int = 0


class FileWriter:
    """Collects batches by day and writes a file whenever a day has enough. Holds `size` bytes a day at most."""

    def __init__(self, lake: Lake, queue: str, stem: str, size: int) -> None:
        import pyarrow

        self._pa = pyarrow
        self._lake = lake
        self._queue = queue
        # Two attempts of a task never write the same file.
        self._stem = f"{stem}-{secrets.token_hex(6)}"
        self._size = size
        self._days: dict[int, _Day] = {}
        self._written: list[tuple[File, dict[str, int]]] = []

    def add(self, batch: Any) -> None:
        import pyarrow.compute as pc

        days = batch.column("timestamp").cast(self._pa.timestamp("s", "UTC"), safe=False).cast(self._pa.int64())
        days = pc.divide(days, 86_400)
        found = days.unique().to_pylist()
        for day in found:
            part = batch if len(found) == 1 else batch.filter(pc.equal(days, day))
            held = self._days.setdefault(day, _Day())
            held.batches.append(part)
            held.bytes += part.nbytes
            if held.bytes >= self._size:
                self._write(day)
        while len(self._days) > MOST_OPEN:
            self._write(max(self._days, key=lambda day: self._days[day].bytes))

    def close(self) -> list[tuple[File, dict[str, int]]]:
        """Write what is left. Returns every file with the messages it holds of each partition."""
        for day in list(self._days):
            self._write(day)
        return self._written

    def _write(self, day: int) -> None:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        held = self._days.pop(day)
        table = self._pa.Table.from_batches(held.batches)
        buffer = self._pa.BufferOutputStream()
        pq.write_table(table, buffer, compression=COMPRESSION, compression_level=LEVEL, row_group_size=ROWS_PER_GROUP)
        content = buffer.getvalue()
        date = datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
        path = f"{folder_of(self._queue)}/date={date}/{self._stem}-{len(self._written)}.parquet"
        digest = self._lake.write(path, content)
        times = pc.min_max(table.column("timestamp"))
        counted = Counter[str]()
        for entry in table.column("partitionId").value_counts().to_pylist():
            counted[entry["values"]] += entry["counts"]
        file = File(path, table.num_rows, content.size, digest, times["min"].as_py(), times["max"].as_py())
        self._written.append((file, dict(counted)))
