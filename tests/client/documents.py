"""Runs what a document shows: its Python and shell blocks one after the other, as a reader would type them."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = "http://127.0.0.1:6632"
PATIENCE_S = 60
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$\n*(?:^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    expected: str  # what it prints; empty if the document does not say


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    return [
        Block(text[: match.start()].count("\n") + 2, match[1], match[2], match[3] or "")
        for match in _BLOCK.finditer(text)
    ]


async def run(document: Path, url: str) -> int:
    """Run every block of Python and of the shell; returns how many. What a block prints must be what follows it."""
    names: dict[str, Any] = {}
    count = 0
    for block in blocks(document):
        where = f"{document.name}, line {block.line}"
        code = block.code.replace(SERVER, url)
        async with asyncio.timeout(PATIENCE_S):
            if block.language == "python":
                printed = await _python(code, block.line, document, names)
                assert printed == block.expected, where
            elif block.language == "sh":
                await _shell(code, where)
            else:
                continue
        count += 1
    return count


async def _python(code: str, line: int, document: Path, names: dict[str, Any]) -> str:
    source = "\n" * (line - 1) + code
    compiled = compile(source, str(document), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if compiled.co_flags & inspect.CO_COROUTINE:
            await eval(compiled, names)
        else:
            # A program of its own, which may block or have an event loop of its own.
            await asyncio.to_thread(exec, compiled, {"__name__": "__main__"} if "with Bl" in code else names)
    return printed.getvalue()


async def _shell(code: str, where: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "bash", "-euc", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, f"{where}: {errors.decode()}"
    assert b'"error"' not in output, f"{where}: {output.decode()}"
