"""docs/client.md is true: its code is run as it stands, and prints what it says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from client.documents import run
from queenmq.client import ClientOptions, Queen

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "client.md"
GUIDE = DOCUMENT.read_text()


async def test_every_block_runs_and_prints_what_the_guide_says(url: str, queen: Queen) -> None:
    assert await run(DOCUMENT, url) >= 10


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
