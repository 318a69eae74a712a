"""Which hosts a URL names, and which PostgreSQL is newer than another."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from asyncpg.protocol import protocol

from queenmq.config import DatabaseSettings
from queenmq.core.lineage import Lineage, Lineages, Verdict
from queenmq.storage.connecting import dsn, place_of, url_of_each_host

NAMED = [
    ("postgresql://u:p@a/db", {"a": "postgresql://u:p@a/db"}),
    (
        "postgresql://u:p%40x@a:1,b:2/db?sslmode=require",
        {"a:1": "postgresql://u:p%40x@a:1/db?sslmode=require", "b:2": "postgresql://u:p%40x@b:2/db?sslmode=require"},
    ),
    (
        "postgresql://u@[::1]:1,[fe80::2],%2Frun%2Fpg/db",
        {
            "[::1]:1": "postgresql://u@[::1]:1/db",
            "[fe80::2]": "postgresql://u@[fe80::2]/db",
            "%2Frun%2Fpg": "postgresql://u@%2Frun%2Fpg/db",
        },
    ),
    ("postgresql://a,b?target_session_attrs=any", {h: f"postgresql://{h}?target_session_attrs=any" for h in "ab"}),
    ("postgresql:///db?host=/run", {"on this machine": "postgresql:///db?host=/run"}),
    ("postgresql://u@,/db", {",": "postgresql://u@,/db"}),
    ("nonsense", {"on this machine": "nonsense"}),
]


@pytest.mark.parametrize(("url", "hosts"), NAMED)
def test_each_host_has_a_url_of_its_own(url: str, hosts: dict[str, str]) -> None:
    assert url_of_each_host(url) == hosts


def test_a_place_shows_no_password_and_no_parameters() -> None:
    assert place_of("postgresql://u:secret@a:1,b:2/db?password=secret") == "a:1,b:2/db"
    assert place_of("postgresql:///db") == "on this machine/db"


@pytest.mark.parametrize("url", ["postgresql://u:p@a:1/db?x=1", "postgres://a/db#f", "postgresql://u:p%40@[::1]:5/d"])
def test_a_place_of_one_host_names_the_same_journal_as_ever(url: str) -> None:
    parts = urlsplit(url)
    assert place_of(url) == parts.netloc.rpartition("@")[2] + parts.path


def test_several_hosts_in_pg_host_have_the_same_port() -> None:
    url = dsn(DatabaseSettings(host="a, b,fe80::1", port=6432, name="d"))
    assert url == "postgresql://postgres:postgres@a:6432,b:6432,[fe80::1]:6432/d"


def test_a_promotion_is_newer_and_the_former_primary_older() -> None:
    known = Lineages()
    assert known.judge(Lineage(1, 3)) is Verdict.NEWER
    known.accept(Lineage(1, 3))
    assert known.judge(Lineage(1, 3)) is Verdict.SAME
    assert known.judge(Lineage(1, 2)) is Verdict.OLDER
    assert known.judge(Lineage(1, 4)) is Verdict.NEWER
    known.accept(Lineage(1, 4))
    assert known.judge(Lineage(1, 3)) is Verdict.OLDER


def test_a_system_that_was_left_is_older_whatever_its_timeline() -> None:
    known = Lineages()
    known.accept(Lineage(1, 3))
    assert known.judge(Lineage(2, 1)) is Verdict.NEWER
    known.accept(Lineage(2, 1))
    assert known.judge(Lineage(1, 3)) is Verdict.OLDER
    assert known.judge(Lineage(1, 9)) is Verdict.OLDER


def test_a_database_that_does_not_say_is_taken_as_it_is() -> None:
    known = Lineages()
    known.accept(None)
    assert known.judge(None) is Verdict.SAME
    known.accept(Lineage(1, 3))
    assert known.judge(None) is Verdict.SAME
    known.accept(None)
    assert known.judge(Lineage(1, 2)) is Verdict.OLDER


def test_the_driver_finds_text_and_bytes_without_asking_abstract_classes() -> None:
    """If it fails after an upgrade of the driver, arrays are encoded more slowly, or the driver does that by itself."""
    for question in ("IterableABC", "SizedABC"):
        assert getattr(protocol, question)[:2] == (str, bytes)
