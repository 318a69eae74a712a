"""The pure parts: when to try again, which options make sense, what is an envelope, and how errors are named."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import queenmq.client
from queenmq.client import ClientOptions, NetworkError, Overloaded, QueenError, errors
from queenmq.client.errors import refusal
from queenmq.client.options import DEFAULT_URL, Options, server_urls
from queenmq.client.retry import Retries, parse_retry_after

# A busy machine is no fault of the rules.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

BROKEN = NetworkError("broken", sent=True)


def busy(retry_after_s: float | None = None) -> Overloaded:
    return Overloaded(429, "busy", {}, retry_after_s)


def delays(retries: Retries, error: QueenError) -> list[float]:
    found = []
    while (delay := retries.delay_after(error)) is not None:
        found.append(delay)
    return found


@calm
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 5_000), st.integers(0, 60_000))
def test_backoff_doubles_is_jittered_and_bounded(seed: int, attempts: int, first: int, longest: int) -> None:
    options = ClientOptions(retry_attempts=attempts, retry_delay_millis=first, max_retry_delay=longest)
    found = delays(Retries(options, Random(seed)), BROKEN)
    assert len(found) == attempts - 1
    for count, delay in enumerate(found):
        whole = min(first * 2**count, longest) / 1000
        assert whole / 2 <= delay <= whole


@calm
@given(st.integers(0, 2**32), st.floats(0, 1e9))
def test_retry_after_is_waited_for_but_never_longer_than_the_bound(seed: int, asked: float) -> None:
    delay = Retries(ClientOptions(), Random(seed)).delay_after(busy(asked))
    assert delay is not None
    assert min(asked, 30) <= delay <= min(asked * 1.1, 30)


def test_overload_and_failure_are_counted_apart() -> None:
    options = ClientOptions(retry_attempts=2, retry_attempts_429=3)
    retries = Retries(options, Random(1))
    assert retries.delay_after(BROKEN) is not None
    assert len(delays(retries, busy(0))) == 2
    assert retries.delay_after(BROKEN) is None


def test_two_clients_do_not_come_back_in_step() -> None:
    first, second = (delays(Retries(ClientOptions(), Random(seed)), BROKEN) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
        ("Wed, 01 Jan 2025 00:00:30", 30.0),
        ("Tue, 31 Dec 2024 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, datetime(2025, 1, 1, tzinfo=UTC)) == seconds


@calm
@given(st.text())
def test_any_retry_after_is_survived(header: str) -> None:
    found = parse_retry_after(header)
    assert found is None or found >= 0


@calm
@given(st.integers(400, 599), st.dictionaries(st.sampled_from(["error", "code", "field"]), st.none() | st.text()))
def test_every_refusal_has_a_type_a_code_and_a_text(status: int, body: dict[str, str | None]) -> None:
    error = refusal(status, body, None)
    assert error.status == status
    assert isinstance(error, errors.Unavailable) == (status in (408, 429) or status >= 500)
    assert isinstance(error.code, str)
    assert str(error)


def test_the_tree_of_errors_is_drawn_completely() -> None:
    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, QueenError):
            assert name in drawn
            assert name in queenmq.client.__all__


def test_the_options_have_one_list() -> None:
    assert {field.name for field in dataclasses.fields(ClientOptions)} == set(Options.__annotations__)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_millis": 0},
        {"retry_attempts": 0},
        {"max_retry_delay": -1},
        {"max_connections": 0},
        {"queued_operation_behavior": "hope"},
        {"load_balancing": "random"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ClientOptions(**options)  # type: ignore[arg-type]


def test_servers_are_named_in_several_ways() -> None:
    assert server_urls(None) == (DEFAULT_URL,)
    assert server_urls("http://a/") == ("http://a",)
    assert server_urls(["http://a", "http://b/"], "http://a", ["https://c"]) == ("http://a", "http://b", "https://c")
    for wrong in ("a:6632", "ftp://a", "http://", "http://a:99999", "http://a:0", "http://a:port"):
        with pytest.raises(ValueError, match="not the URL"):
            server_urls(wrong)
    for secret in ("http://me:secret@a", "http://a?token=secret", "http://a#secret"):
        with pytest.raises(ValueError, match="bearer_token") as caught:
            server_urls(secret)
        assert "secret" not in str(caught.value)


def test_importing_the_client_loads_nothing_of_the_server() -> None:
    code = "import queenmq.client, sys; print(*(name for name in sys.modules if name.split('.')[0] in sys.argv[1:]))"
    command = [sys.executable, "-W", "error", "-c", code, "asyncpg", "uvloop", "jwt", "cryptography", "queenmq"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    ours = [name for name in loaded if not name.startswith("queenmq.client")]
    assert set(ours) <= {
        "queenmq",
        "queenmq.ids",
        "queenmq.clock",
        "queenmq.core",
        "queenmq.core.names",
        "queenmq.errors",
    }


def test_the_client_imports_nothing_of_the_server() -> None:
    """import-linter forbids the server's packages; this allows only what is named."""
    allowed = {"aiohttp", "yarl", "msgspec", "queenmq", "opentelemetry"}
    # Imported only when a connection of theirs is given.
    given = {("own_transaction.py", "sqlalchemy"), ("own_transaction.py", "django")}
    ours = {"queenmq.clock", "queenmq.ids", "queenmq.core.names"}
    for path in Path(queenmq.client.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                top = name.split(".")[0]
                assert top in allowed or top in sys.stdlib_module_names or (path.name, top) in given, (path.name, name)
                assert top != "queenmq" or name.startswith("queenmq.client") or name in ours, (path.name, name)
