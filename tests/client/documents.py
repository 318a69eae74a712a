"""Runs what a document shows: its blocks of Python, of the shell and of SQL one after the other, as a reader would type
them."""

from __future__ import annotations

import ast
import asyncio
import codeop
import contextlib
import inspect
import io
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import asyncpg

SERVER = "http://127.0.0.1:6632"
PATIENCE_S = 60
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$\n*(?:^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"# \w+\.py\n")


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
    """Run every block of Python, shell and SQL; returns how many. What a block prints must be what follows it.

    Python is typed line by line into one session, as into `python -m asyncio`. A block that begins with the name of a
    file (`# worker.py`) is a program and runs by itself. SQL goes to the database of DATABASE_URL.
    """
    session = Session(document)
    count = 0
    for block in blocks(document):
        where = f"{document.name}, line {block.line}"
        code = block.code.replace(SERVER, url)
        async with asyncio.timeout(PATIENCE_S):
            if block.language == "python" and _PROGRAM.match(code):
                assert await _program(code, where, url) == block.expected, where
            elif block.language == "python":
                assert await session.type(code, block.line) == block.expected, where
            elif block.language == "sh":
                await _shell(code, where, url)
            elif block.language == "sql":
                await _psql(code, where)
            else:
                continue
        count += 1
    return count


class Session:
    """What `python -m asyncio` does with lines that are typed, except that it does not show what expressions return."""

    def __init__(self, document: Path) -> None:
        self._name = str(document)
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._compile = codeop.CommandCompiler()
        self._compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    async def type(self, code: str, first: int) -> str:
        """What is printed meanwhile. At the end of a block Enter is pressed once more, as a reader does."""
        typed: list[str] = []
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), patch("sys.displayhook", lambda value: None):
            for number, line in enumerate([*code.splitlines(), ""], first):
                typed.append(line)
                try:
                    compiled = self._compile("\n".join(typed), self._name, "single")
                except SyntaxError as error:
                    raise AssertionError(f"{self._name}, line {number} cannot be typed: {error}") from error
                if compiled is None:
                    continue
                typed.clear()
                result = FunctionType(compiled, self._names)()
                if inspect.iscoroutine(result):
                    await result
        assert not typed, f"{self._name}, line {first}: the block has no end"
        return printed.getvalue()


async def _program(code: str, where: str, url: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"QUEEN_URL": url},
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, f"{where}: {errors.decode()}"
    return output.decode()


async def _psql(code: str, where: str) -> None:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    try:
        await connection.execute(code)
    except asyncpg.PostgresError as error:
        raise AssertionError(f"{where}: {error}") from error
    finally:
        await connection.close()


async def _shell(code: str, where: str, url: str) -> None:
    """In a folder of its own, with the command `queen` of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-euc",
            code,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=os.environ | {"PATH": path, "QUEEN_URL": url},
        )
        output, errors = await process.communicate()
    assert process.returncode == 0, f"{where}: {errors.decode()}"
    assert b'"error"' not in output, f"{where}: {output.decode()}"
