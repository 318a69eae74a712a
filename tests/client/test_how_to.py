"""The guides are true: what they show is run, on a server of its own for each, and prints what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from client.documents import blocks, run
from queenmq import config
from queenmq.config import Settings
from queenmq.server import Server

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [DOCS / "quick-start.md", *sorted((DOCS / "how-to").glob("*.md"))]
SETTINGS = {
    "encryption.md": {"encryption_key": bytes(range(32))},
    "multi-tenant.md": {"jwt_enabled": True, "jwt_secret": "a secret of more than thirty-two bytes"},
    "overload-and-outage.md": {"file_buffer_flush_ms": 10},
}
NOT_RUN = {"console"}  # what starts servers or changes the machine
KNOWN = {name.split("`")[1] for name in config.markdown_table().splitlines() if name.startswith("| `")}
OF_OTHERS = re.compile(r"OTEL_\w+|[A-Z]+_[A-Z_]*CHECK")


@pytest.fixture
def guide(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def settings(guide: Path, tmp_path: Path) -> Settings:
    return Settings(port=0, shutdown_grace_s=2, file_buffer_dir=tmp_path, **SETTINGS.get(guide.name, {}))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem, indirect=True)
async def test_every_block_runs_and_prints_what_the_guide_says(guide: Path, server: Server) -> None:
    host, port = server.address
    shown = [block for block in blocks(guide) if block.language not in NOT_RUN]
    assert await run(guide, f"http://{host}:{port}") == len(shown), "a block is in a language that nobody runs"
    assert shown or guide.name == "deploy.md"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_variable_of_a_guide_exists(guide: Path) -> None:
    named = set(re.findall(r"\b([A-Z][A-Z0-9]*_[A-Z_]+[A-Z])\b", guide.read_text()))
    assert {name for name in named if name not in KNOWN and not OF_OTHERS.fullmatch(name)} == set()
