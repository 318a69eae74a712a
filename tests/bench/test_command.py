"""The benchmark as a whole: every kind of scenario on a real server, and servers that lie."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.runner import Runner
from queen_bench.scenarios.catalogue import chosen, scenarios
from queen_bench.subject import GivenServer
from queenmq.server import Server

pytestmark = pytest.mark.slow

QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"
TINY = Options(
    seconds=1,
    connections=4,
    partitions=10,
    groups=2,
    rate=500,
    partition_counts=(2, 20),
    age_partitions=20,
    rounds=3,
    parked=20,
    pending=1500,
    idle_seconds=0.2,
)
ONE_OF_EACH_KIND = (
    "push-1",
    "spread-10",
    "cold-10",
    "pop-ack-10",
    "pop-auto-10",
    "pop-take-10",
    "push-client-10",
    "pop-client-1",
    "pop-client-10",
    "both-10-paced",
    "groups-pop-ack-10",
    "partitions-*-push",
    "wakeup",
    "wakeup-half-load*",
    "parked*",
    "timers",
    "age",
)


async def bench(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Run the command in a process of its own; its status, what it printed, and the JSON it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", QUEEN, "bench", "--out", str(folder), *arguments, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    return await process.wait(), printed.decode(), _written(folder)


def _written(folder: Path) -> dict[str, Any]:
    [path] = folder.glob("*.json")
    return json.loads(path.read_text())


async def run_tiny(url: str, *names: str, **options: Any) -> list[Result]:
    tiny = Options(**(vars(TINY) | {"seconds": 0.2} | options))
    return await Runner([GivenServer(url)], tiny).run(chosen(scenarios(tiny), names), 1, lambda _: None)


class TestRealServer:
    async def test_every_kind_of_scenario(self, server: Server, tmp_path: Path) -> None:
        host, port = server.address
        url = f"http://{host}:{port}"
        flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in vars(TINY).items() if name != "spread"]
        status, printed, written = await bench(tmp_path, "--url", url, "--only", ",".join(ONE_OF_EACH_KIND), *flags)
        assert status == 0, printed
        assert written["ok"] is True
        assert written["machine"]["cores"] >= 1
        results = {each["scenario"]: each for each in written["results"]}
        assert set(results) == {each.name for each in chosen(scenarios(TINY), ONE_OF_EACH_KIND)}
        for name, each in results.items():
            assert each["problems"] == []
            assert each["messages"] > 0, name
            assert each["server_rss_mb"] > 1
            assert min(latency["p50_ms"] for latency in each["latency"].values()) > 0
        assert results["pop-ack-10"]["ack_mode"] == "ack/batch"
        assert results["pop-auto-10"]["ack_mode"] == "autoAck"
        assert results["pop-take-10"]["ack_mode"] == "take"
        assert results["pop-client-1"]["ack_mode"] == results["pop-client-10"]["ack_mode"] == "our client"
        assert results["push-1"]["pending"] >= results["push-1"]["messages"]
        assert set(results["pop-ack-10"]["latency"]) == {"pop", "ack"}
        assert results["age"]["worst_age_ms"] > 0
        assert results["age"]["pending"] < results["age"]["messages"]
        assert 0 < results["both-10-paced"]["extra"]["push_rate"] < 2 * TINY.rate
        assert results["parked"]["messages"] == results["parked-partitions"]["messages"] == TINY.parked
        assert results["timers"]["messages"] == TINY.rate * TINY.seconds
        assert results["timers"]["extra"]["latest_ms"] >= results["timers"]["latency"]["late"]["p99_ms"]
        assert results["timers"]["extra"]["idle_cores_with_pending"] >= 0
        assert results["wakeup"]["messages"] == TINY.rounds
        assert [each["of"] for each in written["ratios"]] == ["partitions-20-push"]
        assert "Every message arrived once and in order." in printed

    async def test_a_server_of_its_own_beside_a_given_one(self, server: Server, tmp_path: Path) -> None:
        host, port = server.address
        given = f"http://{host}:{port}"
        arguments = ["--only", "push-10", "--seconds", "0.3", "--connections", "4", "--partitions", "10", "--spread"]
        status, printed, written = await bench(tmp_path, "--against", given, "--scratch", str(tmp_path), *arguments)
        assert status == 0, printed
        assert [each["server"] for each in written["results"]] == ["queen", given]
        assert written["servers"]["queen"]["fsync"] == "on"
        assert written["results"][0]["postgres_cpu_s"] > 0
        [ratio] = written["ratios"]
        assert (ratio["of"], ratio["to"]) == ("queen", given)
        assert ratio["rate"] > 0
        assert not _databases(tmp_path), "a temporary database stays behind"


def _databases(folder: Path) -> list[Path]:
    return list(folder.glob("queen-bench-*"))


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass
class Partition:
    messages: deque[tuple[str, Any]] = field(default_factory=deque)
    leased: int = 0


class LyingServer:
    """The verbs of the contract in memory, honest but for one fault to every 15th message."""

    def __init__(self, fault: str = "none") -> None:
        self._fault = fault
        self._pushed = itertools.count(1)
        self._queues: dict[str, dict[str, Partition]] = {}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        serving: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.add(asyncio.create_task(self._serve(reader, writer)))

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as listening:
            host, port = listening.sockets[0].getsockname()
            yield f"http://{host}:{port}"
            await asyncio.gather(*serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                length = next((int(line[15:]) for line in head.splitlines() if line.startswith("Content-Length:")), 0)
                body = json.loads(await reader.readexactly(length)) if length else {}
                status, answer = self._answer(head.split()[1], body)
                raw = json.dumps(answer).encode()
                size = b"" if status == 204 else b"Content-Length: %d\r\n" % len(raw)
                writer.write(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, size) + (b"" if status == 204 else raw))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _answer(self, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        if target == "/api/v1/push":
            return 201, [self._push(item) for item in body["items"]]
        if target == "/api/v1/ack/batch":
            return 200, [self._ack(item) for item in body["acknowledgments"]]
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        return self._pop(urlsplit(target).path.split("/")[5], int(query["batch"]), "autoAck" in query)

    def _push(self, item: dict[str, Any]) -> dict[str, str]:
        partition = self._queues.setdefault(item["queue"], {}).setdefault(item["partition"], Partition())
        message = (item["transactionId"], item["payload"])
        fault = self._fault if next(self._pushed) % 15 == 0 else "none"
        if fault == "refuse":
            return {"status": "failed"}
        if fault != "lose":
            partition.messages.append(message)
        if fault == "double":
            partition.messages.append(message)
        elif fault == "reorder":
            partition.messages.rotate()
        elif fault == "spoil":
            partition.messages[-1] = (message[0], {"x": "spoilt"})
        elif fault == "invent":
            partition.messages.append(("0:1000000000", item["payload"]))
        return {"status": "queued"}

    def _pop(self, queue: str, batch: int, auto_ack: bool) -> tuple[int, Any]:
        for name, partition in self._queues.get(queue, {}).items():
            if partition.messages and not partition.leased:
                taken = [partition.messages.popleft() for _ in range(min(batch, len(partition.messages)))]
                partition.leased = 0 if auto_ack else len(taken)
                messages = [{"transactionId": name, "data": data} for name, data in taken]
                return 200, {"partitionId": f"{queue}/{name}", "leaseId": "lease", "messages": messages}
        return 204, None

    def _ack(self, item: dict[str, Any]) -> dict[str, bool]:
        queue, _, name = item["partitionId"].partition("/")
        self._queues[queue][name].leased -= 1
        return {"success": True}


class TestLyingServer:
    @pytest.mark.parametrize("name", ["push-10", "pop-ack-10", "pop-auto-10", "both-10"])
    async def test_an_honest_one_passes(self, name: str) -> None:
        async with LyingServer().listening() as url:
            [result] = await run_tiny(url, name)
        assert result.problems == []
        assert result.messages > 0

    @pytest.mark.parametrize(
        ("fault", "found"),
        [
            ("lose", "lost (pushed but never popped)"),
            ("double", "doubled (popped more than once)"),
            ("reorder", "reordered (popped after a later message"),
            ("invent", "invented (popped but never pushed)"),
            ("spoil", "a payload did not arrive as it was pushed"),
            ("refuse", "was answered 201"),
        ],
    )
    @pytest.mark.parametrize("name", ["push-10", "pop-ack-10"])
    async def test_a_liar_is_caught(self, name: str, fault: str, found: str) -> None:
        problems: list[str] = []
        # On a busy machine few messages pass in a short time, and the fault may meet none that shows it.
        for seconds in (0.2, 1.0, 5.0):
            async with LyingServer(fault).listening() as url:
                [result] = await run_tiny(url, name, seconds=seconds)
            problems = result.problems
            if any(found in problem for problem in problems):
                break
        assert any(found in problem for problem in problems), problems

    @pytest.mark.parametrize("fault", ["lose", "double"])
    async def test_the_command_fails(self, fault: str, tmp_path: Path) -> None:
        async with LyingServer(fault).listening() as url:
            arguments = ["--only", "push-10", "--seconds", "1", "--connections", "4", "--partitions", "10"]
            status, printed, written = await bench(tmp_path, "--url", url, *arguments)
        assert status == 1
        assert "FAILED push-10" in printed
        assert written["ok"] is False

    async def test_a_server_that_is_not_there_fails_every_scenario(self, tmp_path: Path) -> None:
        status, printed, written = await bench(tmp_path, "--url", "http://127.0.0.1:1", "--only", "push-1,wakeup")
        assert status == 1
        assert [each["scenario"] for each in written["results"]] == ["push-1", "wakeup"]
        assert "cannot connect" in printed
