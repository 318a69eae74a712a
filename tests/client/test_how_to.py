"""The guides are true: what they show is typed from top to bottom, one page after the other on one server, and prints
what they say."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from cli.conftest import serving
from conftest import Postgres
from server_settings import changed, settings_with

from client.documents import blocks, run
from queenmq import config
from queenmq.config import Settings

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [DOCS / "quick-start.md", DOCS / "client.md", *sorted((DOCS / "how-to").glob("*.md"))]
WITH_TOKENS = DOCS / "how-to" / "multi-tenant.md"
_FRAMEWORKS = ("celery.md", "django.md", "dramatiq.md", "fastapi.md", "faststream.md", "taskiq.md")
WITH_PYTEST = DOCS / "how-to" / "testing.md"  # run by test_testing.py
OF_FRAMEWORKS = {DOCS / "how-to" / name for name in _FRAMEWORKS}  # run by tests/frameworks
NOT_RUN = {"console", "ini", "json", "yaml"}  # what starts servers or changes the machine; test_pages.py says more
WITHOUT_CODE = {"assistants.md", "deploy.md", "high-availability.md", "on-call.md", "tls.md", "upgrade.md"}
OF_THE_COMMAND = {"QUEEN_URL", "QUEEN_TOKEN", "QUEEN_CA_FILE", "QUEEN_LONG"}
KNOWN = OF_THE_COMMAND | {
    name.split("`")[1] for name in config.markdown_tables().splitlines() if name.startswith("| `")
}
OF_OTHERS = re.compile(
    r"QUEEN_LONG|RLIMIT_\w+|ACK_FIRST|\w+_ON_ERROR|OTEL_\w+|[A-Z]+_[A-Z_]*CHECK|DJANGO_\w+|INSTALLED_APPS|SECRET_KEY|USE_TZ"
    r"|SOURCE_DATE_EPOCH"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with(
        journal={"folder": tmp_path, "replay_interval_ms": 10}, server={"encryption_key": bytes(range(32))}
    )


@pytest.fixture
def url(database_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server in a thread of its own: what is typed may block."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    with serving(settings, database_url) as server:
        yield server.url


@pytest.fixture
async def shop(url: str, database_url: str, postgres: Postgres) -> AsyncIterator[None]:
    """The role and the table of an application that the guides speak of."""
    administrator = await asyncpg.connect(postgres.administrator_of(database_url))
    await administrator.execute("DROP ROLE IF EXISTS shop; CREATE ROLE shop")
    owner = await asyncpg.connect(database_url)
    await owner.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, total numeric)")
    await owner.execute("INSERT INTO public.orders VALUES (1, 9.5)")
    await owner.close()
    yield
    await administrator.execute("DROP OWNED BY shop CASCADE; DROP ROLE shop")
    await administrator.close()


async def follow(guide: Path, url: str) -> None:
    shown = [block for block in blocks(guide) if block.language not in NOT_RUN]
    assert shown or guide.name in WITHOUT_CODE
    assert await run(guide, url) == len(shown), "a block is in a language that nobody runs"


@pytest.mark.timeout(600)
async def test_the_guides_can_be_worked_through_on_one_server(url: str, shop: None) -> None:
    for guide in GUIDES:
        if guide not in {WITH_TOKENS, WITH_PYTEST} | OF_FRAMEWORKS:
            await follow(guide, url)


class TestWithTokens:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return changed(settings, auth={"enabled": True, "secret": "a secret of more than thirty-two bytes"})

    async def test_the_guide_to_tenants(self, url: str) -> None:
        await follow(WITH_TOKENS, url)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_variable_of_a_guide_exists(guide: Path) -> None:
    named = set(re.findall(r"\b([A-Z][A-Z0-9]*_[A-Z_]+[A-Z])\b", guide.read_text()))
    assert {name for name in named if name not in KNOWN and not OF_OTHERS.fullmatch(name)} == set()


def test_every_guide_has_its_own_queues() -> None:
    """All of them are worked through on one server: what one leaves behind must not be read by another."""
    owners: dict[str, str] = {}
    for guide in GUIDES:
        code = "".join(block.code for block in blocks(guide) if block.language not in NOT_RUN)
        for name in re.findall(
            r"""\.queue\(f?["']([^"'{]+)["']|"queue": "([^"]+)"|queen (?:push|pop) ([\w.-]+)""", code
        ):
            [queue] = filter(None, name)
            assert owners.setdefault(queue, guide.name) == guide.name, queue
    assert len(owners) > 30
