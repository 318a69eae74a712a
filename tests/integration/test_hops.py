"""How many modules, and how many changes between packages, a push, a pop and an ack go through on one warm server
without a cluster. A reader who follows one message goes the same way. `pytest -s` prints the table."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import queenmq
from queenmq.server import Server

ROOT = f"{Path(queenmq.__file__).parent}/"
RESUMABLE = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
PUSH = {"items": [{"queue": "q", "partition": "p", "payload": {"a": 1}}]}
FRONT = ("httpserver", "http")
# From the top down. What is not named here (the rules of the domain, ids, errors) calls nothing above it.
LAYERS = (FRONT, ("broker",), ("operations", "reports", "journal", "cluster"), ("storage",))
_ROUNDS = 3
# Modules, and changes of package.
MOST = {"push": (15, 15), "pop": (15, 15), "ack": (15, 15)}


@dataclass
class Walk:
    """The functions of Queen that were entered, in order. A coroutine that goes on is not entered again."""

    entered: list[tuple[str, str]] = field(default_factory=list)
    upwards: list[tuple[str, str]] = field(default_factory=list)  # calls of a higher layer: who, and whom
    _seen: set[int] = field(default_factory=set)
    _kept: list[FrameType] = field(default_factory=list)  # so that no id is used again

    @property
    def modules(self) -> list[str]:
        return list(dict.fromkeys(module for module, _ in self.entered))

    @property
    def changes(self) -> int:
        packages = [module.partition("/")[0] for module, _ in self.entered]
        return sum(one != other for one, other in pairwise(packages))

    def __str__(self) -> str:
        modules = self.modules
        front = sum(module.partition("/")[0] in FRONT for module in modules)
        counted = f"{len(self.entered):4} calls {len(modules):3} modules ({front} of them HTTP)"
        return f"{counted} {self.changes:3} changes of package"

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT):
            return
        if code.co_flags & RESUMABLE:
            if id(frame) in self._seen:
                return
            self._seen.add(id(frame))
            self._kept.append(frame)
        module = code.co_filename.removeprefix(ROOT)
        self.entered.append((module, code.co_qualname))
        caller = _caller_of(frame)
        if caller is not None and _depth(caller) > _depth(module):
            self.upwards.append((caller, f"{module} {code.co_qualname}"))


def _caller_of(frame: FrameType) -> str | None:
    """The module of Queen that called; None if it was the event loop."""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
        if caller.f_code.co_filename == asyncio.events.__file__:
            return None
        caller = caller.f_back
    return None if caller is None else caller.f_code.co_filename.removeprefix(ROOT)


def _depth(module: str) -> int:
    package = module.partition("/")[0]
    return next((depth for depth, packages in enumerate(LAYERS) if package in packages), len(LAYERS))


@contextmanager
def walked() -> Iterator[Walk]:
    walk = Walk()
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)


class Client:
    """Speaks HTTP on one connection without any code of Queen."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, server: Server) -> Client:
        return cls(*await asyncio.open_connection(*server.address))

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
        answer = await self._reader.readexactly(length)
        assert lines[0].split()[1] in (b"200", b"201"), answer
        return json.loads(answer)

    async def push(self) -> Any:
        return await self.ask("POST", "/api/v1/push", PUSH)

    async def pop(self) -> Any:
        [message] = (await self.ask("GET", "/api/v1/pop/queue/q?batch=10"))["messages"]
        return {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}

    async def ack(self, message: Any) -> Any:
        return await self.ask("POST", "/api/v1/ack", message | {"status": "completed"})

    async def poll(self) -> Any:
        return await self.ask("GET", "/api/v1/pop/queue/q?wait=true&timeout=30000")

    def close(self) -> None:
        self._writer.close()


async def walks_of(server: Server) -> dict[str, Walk]:
    client, other = await Client.connected(server), await Client.connected(server)
    for _ in range(5):
        await client.push()
        await client.ack(await client.pop())
    for service in server._services:
        await service.stop()  # they run beside, and are no part of the way
    rounds: dict[str, list[Walk]] = {"push": [], "pop": [], "ack": []}
    for _ in range(_ROUNDS):
        with walked() as walk:
            await client.push()
        rounds["push"].append(walk)
        with walked() as walk:
            message = await client.pop()
        rounds["pop"].append(walk)
        with walked() as walk:
            await client.ack(message)
        rounds["ack"].append(walk)
    # The shortest: a timer of the server may have run during another.
    walks = {name: min(found, key=lambda walk: len(walk.entered)) for name, found in rounds.items()}
    poll = asyncio.create_task(other.poll())
    async with asyncio.timeout(30):
        while not any(group.waiters for group in server.broker.long_polls.registry.groups()):
            await asyncio.sleep(0.01)
    with walked() as walks["push that wakes a long poll"]:
        await client.push()
        await poll
    client.close()
    other.close()
    return walks


async def test_the_way_of_a_message_is_short(server: Server) -> None:
    walks = await walks_of(server)
    sys.stdout.write("".join(f"\n{name:28} {walk}" for name, walk in walks.items()) + "\n")
    for name, (modules, changes) in MOST.items():
        walk = walks[name]
        assert len(walk.modules) <= modules, walk.modules
        assert walk.changes <= changes, walk.entered
    assert not [call for walk in walks.values() for call in walk.upwards]
    for name in MOST:
        assert not any(module.startswith("cluster/") for module in walks[name].modules)


def test_a_call_of_a_higher_layer_is_noticed() -> None:
    names: dict[str, Any] = {}
    exec(compile("def answer(): pass", f"{ROOT}http/answers.py", "exec"), names)
    exec(compile("def store(callback): callback()", f"{ROOT}storage/stored.py", "exec"), names)
    with walked() as walk:
        names["store"](names["answer"])
    assert walk.upwards == [("storage/stored.py", "http/answers.py answer")]
