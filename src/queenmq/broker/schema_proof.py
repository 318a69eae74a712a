"""Whether one JSON Schema may follow another, found out in a process of its own: it may take any time and memory.

Run as a program with seconds of processor time, this module reads two schemas and a rule, and writes why they are not
compatible.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

CPU_S: Final = 3
_WITHIN_S: Final = 30.0  # also on a busy machine
_MOST_MEMORY: Final = 1024 * 1024 * 1024


async def incompatibility(old: Any, new: Any, rule: str) -> str | None:
    """As of `core.json_schema`; what is not proved in time is refused."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(CPU_S)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode((old, new, rule))), _WITHIN_S)
    except TimeoutError:
        answer = b""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode or not answer:
        return f"that they are compatible could not be proved within {CPU_S} s of processor time"
    return msgspec.json.decode(answer, type=str | None)


def main(seconds: int) -> None:
    import resource  # not on every system on which the client is imported

    from queenmq.core import json_schema

    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    old, new, rule = msgspec.json.decode(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(json_schema.incompatibility(old, new, rule)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
