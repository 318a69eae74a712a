"""The arithmetic of the benchmark, and what it reads of processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_bench.figures import grows, median, per_core, percentile, ratio, slope
from queen_bench.meter import Meter, per_messages
from queen_bench.processes import Process, Watch, listener, postmaster_among, processes, tree

BURNER = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.2: pass"
subprocess.run([sys.executable, "-c", burn])
print("burnt", flush=True)
sys.stdin.read()
"""


def test_messages_of_a_core() -> None:
    assert per_core(1.5, 0.5) == 50_000
    assert per_core(1.5, None) is None
    assert per_core(0.0) is None


def test_percentiles() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.01) == 7
    assert percentile([], 0.5) is None


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_has_that_share_at_or_below_it(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_median() -> None:
    assert median([3.0, 1.0, 2.0]) == 2
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert median([]) is None


def test_slope() -> None:
    assert slope([(0, 5), (1, 7), (2, 9)]) == pytest.approx(2)
    assert slope([(0, 5), (1, 5)]) == 0
    assert slope([(0, 5)]) == slope([]) == slope([(1, 2), (1, 3)]) == 0


def test_a_backlog_grows_only_if_it_gains_a_share_of_what_is_pushed() -> None:
    assert grows(300, 10_000)
    assert not grows(100, 10_000)
    assert not grows(-100, 10_000)


def test_ratio() -> None:
    assert ratio(3, 2) == 1.5
    assert ratio(None, 2) is ratio(3, None) is ratio(3, 0) is None


def test_cpu_per_messages() -> None:
    assert per_messages(1.0, 3.0, 200_000) == 1.0
    assert per_messages(None, 3.0, 1) is per_messages(1.0, None, 1) is per_messages(1.0, 3.0, 0) is None


def test_a_meter_counts_to_the_last_request() -> None:
    meter = Meter(Watch(os.getpid()))
    meter.start()
    for _ in range(3):
        meter.note("push", meter.started_at, 10)
    meter.stop()
    result = meter.result("push")
    assert result.messages == 30
    assert result.seconds == meter.latencies["push"][-1]
    assert result.rate == pytest.approx(30 / result.seconds)
    assert result.server_rss_mb is not None and result.server_rss_mb > 1
    assert result.server_cpu_s is not None


def test_cpu_of_a_tree_counts_children_that_have_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"burnt\n"
        usage = Watch(parent.pid).usage()
        assert parent.pid in tree(os.getpid(), processes())
        parent.communicate()
    assert usage.server_cpu_s is not None and usage.server_cpu_s >= 0.19


def test_unknown_processes_have_no_usage() -> None:
    usage = Watch(None).usage()
    assert usage.server_cpu_s is usage.postgres_cpu_s is usage.server_rss_kb is None


def test_a_tree_holds_everything_below_and_nothing_else() -> None:
    table = {
        pid: Process(pid, parent, name, 1.0)
        for pid, parent, name in [(1, 0, "init"), (2, 1, "queen"), (3, 2, "postgres"), (4, 3, "postgres"), (5, 1, "x")]
    }
    assert list(tree(2, table)) == [2, 3, 4]
    assert postmaster_among(tree(2, table)) == 3
    assert tree(None, table) == {}
    assert postmaster_among(tree(5, table)) is None


def test_the_process_on_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert listener(port) == os.getpid()
    assert listener(port) is None
