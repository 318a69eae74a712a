"""The fuzzers of HTTP requests and consumer connections against a real server: short runs, and with QUEEN_LONG=1 ten
minutes each."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
from pathlib import Path

import pytest
from cluster.processes import ServeProcess
from fuzz.consumer_frames import ConsumerFuzzer
from fuzz.http_requests import BODIES, HEADLESS, Fuzzer

from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.http.openapi import document

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
SECONDS = 600 if LONG else 8
MOST_GROWTH_MB = 48


def resident_mb(process: ServeProcess) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def test_every_body_is_changed() -> None:
    """A route that takes one must be in the fuzzer."""
    taking = {
        path
        for path, operations in document(ROUTES, Settings())["paths"].items()
        if any("requestBody" in operation for operation in operations.values())
    }
    assert taking <= BODIES.keys() | HEADLESS


@pytest.mark.timeout(2 * SECONDS + 600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is in /proc on Linux only")
@pytest.mark.parametrize("kind", [Fuzzer, ConsumerFuzzer], ids=["requests", "consumer connections"])
async def test_changed_requests_do_no_harm(
    database_url: str, tmp_path: Path, kind: type[Fuzzer] | type[ConsumerFuzzer]
) -> None:
    server = ServeProcess(tmp_path, "fuzzed", DATABASE_URL=database_url, FILE_BUFFER_DIR=str(tmp_path / "journal"))
    seed = random.getrandbits(31)
    await server.start()
    try:
        fuzzer = kind(server.url, seed)
        # Caches, pools and statements take their memory in the beginning, so it is compared from then on.
        await fuzzer.run(SECONDS / 2)
        before = resident_mb(server)
        await fuzzer.run(SECONDS / 2)
        grown = resident_mb(server) - before
        ends = fuzzer.statuses if isinstance(fuzzer, Fuzzer) else fuzzer.closed
        said = f"{ends.total()} answers, {before:.0f} MB, {grown:+.0f} MB in the second half"
        logging.getLogger(__name__).info(said)
        assert grown < MOST_GROWTH_MB, said
        assert ({200, 400, 404} if isinstance(fuzzer, Fuzzer) else {None, 400, 1007}) <= ends.keys()
        assert server.process.poll() is None
        assert "Traceback" not in server.log
    except BaseExceptionGroup as failures:
        program = Path(inspect.getfile(kind)).name
        failures.add_note(f"to run it again: python tests/fuzz/{program} {server.url} 60 {seed}")
        raise
    finally:
        await asyncio.to_thread(server.make_sure_it_is_gone)
