"""docs/client.md is true: its code is run as it stands, and prints what it says."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queenmq.client import ClientOptions, Queen

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "client.md").read_text()
SERVER = "http://127.0.0.1:6632"


def blocks() -> Iterator[tuple[int, str, str]]:
    """Every block of Python: its line, its code, and what it prints."""
    for match in re.finditer(r"```python\n(.*?)```\n+(?:```text\n(.*?)```)?", GUIDE, re.DOTALL):
        yield GUIDE[: match.start()].count("\n") + 2, match[1], match[2] or ""


async def test_every_block_runs_and_prints_what_the_guide_says(url: str, queen: Queen) -> None:
    names: dict[str, Any] = {}
    count = 0
    for line, code, expected in blocks():
        source = "\n" * (line - 1) + code.replace(SERVER, url)
        compiled = compile(source, "docs/client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        async with asyncio.timeout(20):
            with contextlib.redirect_stdout(printed):
                if compiled.co_flags & inspect.CO_COROUTINE:
                    await eval(compiled, names)
                else:
                    # A program of its own, which may block or have an event loop of its own.
                    await asyncio.to_thread(exec, compiled, {"__name__": "__main__"} if "with Bl" in code else names)
        assert printed.getvalue() == expected, f"docs/client.md, line {line}"
        count += 1
    assert count >= 10


def test_the_options_are_listed_with_their_defaults() -> None:
    for option in dataclasses.fields(ClientOptions):
        shown = re.search(rf"^\| `{option.name}` \| (\S+)", GUIDE, re.MULTILINE)
        assert shown, option.name
        if isinstance(option.default, (bool, int, str)):
            assert shown[1].strip('"') == str(option.default), option.name


def test_the_links_of_the_guide_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
        for line in GUIDE.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (ROOT / "docs" / target).exists(), target
