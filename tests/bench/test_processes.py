"""The CPU of a tree of processes, of which some end without anybody asking for what they have used."""

from __future__ import annotations

import pytest

from queen_bench import processes
from queen_bench.processes import Process, Watch

Table = list[tuple[int, int, float, float]]
ROOT, DAEMON, WORKER, OTHER = 10, 11, 12, 13


@pytest.mark.parametrize(
    ("tables", "used"),
    [
        # The parent ignores that its children end, as the daemon of PySpark does.
        ([[(ROOT, 1, 1, 0), (WORKER, ROOT, 5, 0)], [(ROOT, 1, 2, 0)]], [6, 7]),
        # It has asked for it.
        ([[(ROOT, 1, 1, 0), (WORKER, ROOT, 5, 0)], [(ROOT, 1, 7.5, 5.5)]], [6, 7.5]),
        # One of each: so much of what they had used is not with the parent.
        ([[(ROOT, 1, 1, 0), (WORKER, ROOT, 5, 0), (OTHER, ROOT, 3, 0)], [(ROOT, 1, 4, 3)]], [9, 9]),
        # The daemon ends, too, and takes what it knows of to its parent.
        (
            [
                [(ROOT, 1, 1, 0), (DAEMON, ROOT, 2, 0), (WORKER, DAEMON, 5, 0)],
                [(ROOT, 1, 1, 0), (DAEMON, ROOT, 2, 0)],
                [(ROOT, 1, 3, 2)],
            ],
            [8, 8, 8],
        ),
        ([[(ROOT, 1, 1, 0), (DAEMON, ROOT, 2, 0), (WORKER, DAEMON, 5, 0)], [(ROOT, 1, 3, 2)]], [8, 8]),
        # What comes and goes between two looks is with the parent, or was never seen.
        ([[(ROOT, 1, 1, 0)], [(ROOT, 1, 4, 3), (WORKER, ROOT, 1, 0)], [(ROOT, 1, 5, 4)]], [1, 5, 5]),
    ],
)
def test_the_cpu_of_a_tree_never_falls(monkeypatch: pytest.MonkeyPatch, tables: list[Table], used: list[float]) -> None:
    left = iter(tables)

    def seen() -> dict[int, Process]:
        return {pid: Process(pid, parent, "python", cpu, ended) for pid, parent, cpu, ended in next(left)}

    monkeypatch.setattr(processes, "processes", seen)
    watch = Watch(ROOT)
    assert [watch.usage().server_cpu_s for _ in tables] == used
