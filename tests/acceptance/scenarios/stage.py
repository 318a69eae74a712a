"""Runs the checks of one scenario with the client that is installed beside this interpreter.

    python <scenario>.py URL [TOKEN]

Every check is a coroutine function that gets a client and, as the name of a queue, its own name. All checks of a
scenario run at the same time. One JSON object goes to standard output: what each check returned and how the failed
ones failed. The client prints to standard output too; that is caught and searched for errors that it hides.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from importlib import metadata

from queen import Queen

CLIENT = metadata.version("queen-mq")
VERSION = tuple(int(part) for part in CLIENT.split("."))

# 0.12 has neither: its long polls always last 30 s and it pops from one partition at a time.
HAS_TIMEOUT = HAS_PARTITIONS = VERSION >= (0, 15)
# Sizing by the broker, commit on delivery and honest answers about batches came with 1.x and 2.x.
IS_MODERN = VERSION >= (2,)

Check = Callable[[Queen, str], Awaitable[object]]
_checks: list[Check] = []

_CHECK_TIMEOUT_S = 40
_LONGEST_LINE = 500
# What the clients print when they hide an error from their caller.
_SWALLOWED = ("Pop failed", "DLQ query failed", "Lease renewal failed", "Flush error", "Error flushing", "Worker ")


def check(function: Check) -> Check:
    """Make `function` a check of this scenario."""
    _checks.append(function)
    return function


def check_since(*version: int) -> Callable[[Check], Check]:
    """The same for something that clients before `version` have no way to ask for."""
    return check if version <= VERSION else lambda function: function


def play(*, own_clients: bool = False) -> None:
    """Run the checks and end the process: 0 if all of them passed. They share one client unless `own_clients`."""
    chatter = io.StringIO()
    with contextlib.redirect_stdout(chatter):
        results = asyncio.run(_run_all(own_clients))
    failures = {name: text for name, (text, _) in results.items() if text}
    hidden = [line for line in chatter.getvalue().splitlines() if line.startswith(_SWALLOWED)]
    if hidden:
        failures["errors that the client hid"] = "\n".join(hidden)
    values = {name: value for name, (_, value) in results.items()}
    json.dump({"client": CLIENT, "failures": failures, "values": values}, sys.stdout)
    sys.exit(1 if failures else 0)


def client(token: str | None = None) -> Queen:
    """A client of the server under test."""
    # By keyword: 0.12 and 0.15 forget every other argument when the URL is positional.
    return Queen(url=sys.argv[1], bearer_token=token)


async def _run_all(own_clients: bool) -> dict[str, tuple[str, object]]:
    token = sys.argv[2] if len(sys.argv) > 2 else None
    async with client(token) as shared:
        clients = [client(token) if own_clients else contextlib.nullcontext(shared) for _ in _checks]
        results = await asyncio.gather(*map(_run, _checks, clients))
    return dict(zip((function.__name__ for function in _checks), results, strict=True))


async def _run(function: Check, opening: contextlib.AbstractAsyncContextManager[Queen]) -> tuple[str, object]:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S), opening as queen:
            return "", await function(queen, function.__name__)
    except Exception as error:
        return _told(error), None


def _told(error: Exception) -> str:
    """The traceback with the variables of the check, for want of pytest's help in this environment."""
    told = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "\n".join(line[:_LONGEST_LINE] for line in "".join(told.format()).splitlines())


def data_of(messages: list[dict[str, object]]) -> list[object]:
    return [message["data"] for message in messages]


async def fill(queen: Queen, queue: str, *values: object, partition: str = "Default") -> list[dict[str, object]]:
    """Push every value as a message of its own, in one request; the answers."""
    results = await queen.queue(queue).partition(partition).push([{"data": value} for value in values])
    assert [result["status"] for result in results] == ["queued"] * len(values), results
    return results


async def is_empty(queen: Queen, queue: str, group: str | None = None) -> bool:
    """Whether a pop that does not wait gets nothing."""
    builder = queen.queue(queue).wait(False)
    return await (builder.group(group) if group else builder).pop() == []


async def gives(queen: Queen, queue: str, expected: list[object], group: str | None = None) -> None:
    """Pop and acknowledge until nothing is left: it must be `expected`, in this order."""
    received = await drain(queen, queue, group)
    assert received == expected, f"{received!r:.500} instead of {expected!r:.500}"


async def drain(queen: Queen, queue: str, group: str | None = None) -> list[object]:
    """Pop and acknowledge until nothing is left; the data in order of delivery."""
    seen: list[object] = []
    context = {"group": group} if group else {}
    while True:
        builder = queen.queue(queue).batch(100).wait(False)
        messages = await (builder.group(group) if group else builder).pop()
        if not messages:
            return seen
        seen += data_of(messages)
        await ack_all(queen, messages, context)


async def ack_all(queen: Queen, messages: list[dict[str, object]], context: dict[str, object] | None = None) -> None:
    """Acknowledge as one batch. The old clients call it a success whatever the single answers say, so look inside."""
    answer = await queen.ack(messages, True, context or {})
    assert answer["success"], answer
    assert [result["success"] for result in answer["results"]] == [True] * len(messages), answer
