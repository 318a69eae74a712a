"""What docs/client.md says of options and where its links lead. Its code is run by test_how_to."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from queenmq.client import ClientOptions

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "client.md"
GUIDE = DOCUMENT.read_text()


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
            assert (ROOT / "docs" / target.partition("#")[0]).exists(), target
