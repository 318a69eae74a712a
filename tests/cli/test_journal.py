"""`queen journal`: what was set aside is listed, shown, exported and stored after all, beside the server that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from server_settings import settings_with

from cli.conftest import Run, Running, serving, until
from queenmq.client import BlockingQueen
from queenmq.journal.folder import JournalFolder

if TYPE_CHECKING:
    from conftest import Postgres

FAILING = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.transaction_id = 'bad' THEN
            RAISE SQLSTATE '22P05' USING MESSAGE = 'no such character here';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON queen.messages FOR EACH ROW EXECUTE FUNCTION public.refuse();
"""
MENDED = "DROP TRIGGER refuse ON queen.messages; DROP FUNCTION public.refuse()"
KEY = "07" * 32


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journals"


@pytest.fixture
def server(journal: Path, postgres: Postgres, environment: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server with a database of its own."""
    url = asyncio.run(postgres.create())
    environment.setenv("QUEEN_ENCRYPTION_KEY", KEY)
    settings = settings_with(
        journal={"folder": journal, "replay_interval_ms": 10}, server={"encryption_key": bytes.fromhex(KEY)}
    )
    with serving(settings, url) as started:
        yield started
    asyncio.run(postgres.drop(url))


def execute(server: Running, sql: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(server.database_url)
        await connection.execute(sql)
        await connection.close()

    asyncio.run(run())


def test_what_was_set_aside_is_looked_at_and_stored_after_all(
    server: Running, queen: Run, journal: Path, name: str
) -> None:
    of_server = ("journal", "list", "--folder", str(journal), "--json")
    with BlockingQueen(server.url) as client:
        execute(server, FAILING)
        try:
            client.admin.set_maintenance_mode(True)
            for payload in ("good", "bad", "later"):
                queen("push", name, f'{{"text": "{payload}"}}', "--transaction-id", payload, "--server", server.url)
            client.admin.set_maintenance_mode(False)
            until(lambda: len(queen(*of_server).json), 1)
        finally:
            execute(server, MENDED)
        [row] = queen(*of_server).json
        assert (row["state"], row["messages"], row["queues"]) == ("set aside", 1, name)
        assert "22P05" in row["why"]
        record, folder = row["record"], ("--folder", str(journal))
        assert record in queen("journal", *folder).out
        shown = queen("journal", "show", record, *folder, "--json").json
        assert shown["content"][0]["data"] == {"text": "bad"}
        assert '"text": "bad"' in queen("journal", "show", record, *folder).out
        [exported] = queen("journal", "export", record, *folder).lines
        assert (exported["queue"], exported["transactionId"]) == (name, "bad")
        assert queen("journal", "export", "--all", *folder).lines == [exported]
        assert queen("journal", "retry", "nothing", *folder).status == 3
        assert queen("journal", "retry", *folder).status == 2
        assert queen("journal", "retry", "--all", *folder, "--json").json["retried"] == [record]
        until(lambda: queen(*of_server).json, [])
        until(lambda: client.admin.get_operation_stats()["journal"]["operations"], 0)
        stored = client.queue(name).batch(10).pop()
        assert [message.data["text"] for message in stored] == ["good", "later", "bad"]


def test_what_is_damaged_or_needs_another_key_is_not_retried_or_read(
    queen: Run, journal: Path, environment: pytest.MonkeyPatch
) -> None:
    folder = JournalFolder.take(journal / "0")
    assert folder is not None
    folder.set_aside("000000000001-aa.0", b"QnJ1 and so on", "its bytes are damaged")
    folder.set_aside("000000000001-aa.44", b"\1" + bytes(40), "because")
    environment.setenv("FILE_BUFFER_DIR", str(journal))
    states = {row["record"]: row["state"] for row in queen("journal", "list", "--json").json}
    assert states == {
        "000000000001-aa.0": "damaged: it cannot be decoded",
        "000000000001-aa.44": "encrypted with another key than QUEEN_ENCRYPTION_KEY",
    }
    assert "cannot be stored" in queen("journal", "retry", "000000000001-aa.0").err
    assert queen("journal", "export", "000000000001-aa.44").status == 1
    assert queen("journal", "retry", "--all", "--json").json == {
        "retried": ["000000000001-aa.44"],
        "damaged": ["000000000001-aa.0"],
    }
    assert [path.name for path in folder.to_retry()] == ["000000000001-aa.44"]
    folder.release()


def test_a_key_that_is_lost_is_given_up(queen: Run, journal: Path) -> None:
    folder = JournalFolder.take(journal / "0")
    assert folder is not None
    assert queen("journal", "give-up", "0123456789abcdef", "--folder", str(journal)).status == 2
    told = queen("journal", "give-up", "0123456789abcdef", "--folder", str(journal), "--yes")
    assert (told.status, folder.given_up()) == (0, ["0123456789abcdef"])
    folder.release()


def test_a_folder_that_is_not_there(queen: Run, tmp_path: Path) -> None:
    assert queen("journal", "--folder", str(tmp_path / "nothing")).status == 3
    assert queen("journal").status == 3
