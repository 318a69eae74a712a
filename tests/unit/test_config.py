from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.config import Settings, load, markdown_table
from queenmq.errors import StartupError

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
SECRETS = {
    "DATABASE_URL",
    "PG_PASSWORD",
    "QUEEN_ENCRYPTION_KEY",
    "JWT_SECRET",
    "QUEEN_SYNC_SECRET",
    "QUEEN_SYNC_SECRET_PREVIOUS",
}
HEXADECIMAL = {"QUEEN_ENCRYPTION_KEY", "QUEEN_SYNC_SECRET", "QUEEN_SYNC_SECRET_PREVIOUS"}
KEY = "0123456789abcdef" * 4


def refusal(env: str, raw: str) -> str:
    with pytest.raises(StartupError) as caught:
        load({env: raw})
    return caught.value.message


def variables(parser: str) -> list[str]:
    return [f.metadata["env"] for f in fields(Settings) if f.metadata["parse"].__name__ == parser]


# Layers


def test_defaults_when_nothing_is_set() -> None:
    assert load({}) == Settings()


def test_the_environment_wins_over_the_default() -> None:
    assert load({"PORT": "7000", "HOST": "0.0.0.0"}) == Settings(port=7000, host="0.0.0.0")


def test_a_flag_wins_over_the_environment() -> None:
    assert load({"PORT": "7000", "HOST": "h"}, port=8000) == Settings(port=8000, host="h")


def test_a_flag_that_is_none_was_not_given() -> None:
    assert load({"PORT": "7000"}, port=None, host=None).port == 7000


def test_a_flag_may_be_false_or_zero() -> None:
    settings = load({"JWT_ENABLED": "true", "PORT": "7000"}, jwt_enabled=False, port=0)
    assert (settings.jwt_enabled, settings.port) == (False, 0)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({f.metadata["env"]: "" for f in fields(Settings)}) == Settings()


def test_the_process_environment_is_the_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_ID", "from-the-process")
    assert load().worker_id == "from-the-process"
    assert load({}).worker_id == "worker-1"


def test_variables_of_others_are_ignored() -> None:
    assert load({"PATH": "/bin", "port": "1"}) == Settings()


def test_an_unknown_flag_is_a_defect_of_the_caller() -> None:
    with pytest.raises(TypeError):
        load({}, no_such_setting=1)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("environment", "bundled"),
    [
        ({}, True),
        ({"PG_HOST": "db"}, False),
        ({"DATABASE_URL": "postgres://db"}, False),
        ({"PG_PORT": "1"}, True),
    ],
)
def test_the_bundled_database_is_used_unless_another_is_named(environment: dict[str, str], bundled: bool) -> None:
    assert load(environment).uses_bundled_database is bundled


# What each parser takes


@pytest.mark.parametrize(
    ("env", "raw", "name", "value"),
    [
        ("WORKER_ID", " as it is ", "worker_id", " as it is "),
        ("JWT_ENABLED", "true", "jwt_enabled", True),
        ("PG_SSL_REJECT_UNAUTHORIZED", "false", "pg_ssl_reject_unauthorized", False),
        ("JWT_CLOCK_SKEW", "0", "jwt_clock_skew_s", 0),
        ("DB_POOL_SIZE", "1", "db_pool_size", 1),
        ("PORT", "0", "port", 0),
        ("PORT", "65535", "port", 65535),
        ("POP_WAIT_BACKOFF_MULTIPLIER", "1", "pop_wait_backoff_multiplier", 1.0),
        ("POP_WAIT_BACKOFF_MULTIPLIER", "100", "pop_wait_backoff_multiplier", 100.0),
        ("QUEEN_DATA_DIR", "/data", "data_dir", Path("/data")),
        ("JWT_SKIP_PATHS", " /a, /b/ ,,/ ", "jwt_skip_paths", ("/a", "/b/", "/")),
        ("JWT_SKIP_PATHS", ",", "jwt_skip_paths", ()),
        ("LOG_LEVEL", "debug", "log_level", "debug"),
        ("QUEEN_ENCRYPTION_KEY", KEY, "encryption_key", bytes.fromhex(KEY)),
        ("QUEEN_ENCRYPTION_KEY", KEY.upper(), "encryption_key", bytes.fromhex(KEY)),
    ],
)
def test_taken(env: str, raw: str, name: str, value: object) -> None:
    assert getattr(load({env: raw}), name) == value


@pytest.mark.parametrize("env", variables("_flag"))
@pytest.mark.parametrize("raw", ["True", "TRUE", "1", "yes", "on", " true", "false", "0"])
def test_a_flag_is_on_only_for_the_word_true(env: str, raw: str) -> None:
    name = next(f.name for f in fields(Settings) if f.metadata["env"] == env)
    assert getattr(load({env: raw}), name) is False
    assert getattr(load({env: "true"}), name) is True


def test_a_path_may_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load({"QUEEN_DATA_DIR": "~/queen"}).data_dir == Path("/home/somebody/queen")


# What each parser refuses


@pytest.mark.parametrize("env", variables("_positive"))
@pytest.mark.parametrize("raw", ["0", "-1", "1.5", "many", "1e3", "0x10", " "])
def test_positive_numbers(env: str, raw: str) -> None:
    reason = "must be at least 1" if raw in ("0", "-1") else "is not a number"
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize("env", variables("_count"))
@pytest.mark.parametrize(("raw", "reason"), [("-1", "must not be negative"), ("few", "is not a number")])
def test_counts(env: str, raw: str, reason: str) -> None:
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize("env", variables("_port"))
@pytest.mark.parametrize("raw", ["-1", "65536", "http", "80/tcp"])
def test_ports(env: str, raw: str) -> None:
    reason = "must be between 0 and 65535" if raw in ("-1", "65536") else "is not a number"
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize("env", variables("_factor"))
@pytest.mark.parametrize("raw", ["0.99", "100.1", "-1", "nan", "inf", "-inf", "double"])
def test_factors(env: str, raw: str) -> None:
    reason = "is not a number" if raw == "double" else "must be between 1 and 100"
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize(
    ("env", "raw", "allowed"),
    [
        ("LOG_LEVEL", "INFO", "'debug', 'info', 'warning', 'error'"),
        ("JWT_ALGORITHM", "none", "'HS256', 'RS256', 'EdDSA', 'auto'"),
        ("JWT_ALGORITHM", "hs256", "'HS256', 'RS256', 'EdDSA', 'auto'"),
        ("DEFAULT_SUBSCRIPTION_MODE", "newest", "'', 'all', 'from_beginning', 'new', 'new-only'"),
    ],
)
def test_choices(env: str, raw: str, allowed: str) -> None:
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} must be one of {allowed}"


@pytest.mark.parametrize("raw", [KEY[:-1], KEY + "0", KEY[:-1] + "g", "é" * 64, " "])
def test_encryption_keys(raw: str) -> None:
    expected = "QUEEN_ENCRYPTION_KEY cannot be used: its value must be 64 hexadecimal digits"
    assert refusal("QUEEN_ENCRYPTION_KEY", raw) == expected


def test_encryption_keys_with_blanks() -> None:
    refusal("QUEEN_ENCRYPTION_KEY", KEY[:-2] + "  ")


def test_paths_of_nobody() -> None:
    refusal("QUEEN_DATA_DIR", "~no-such-user-of-queen/data")


@given(number=st.integers())
def test_numbers_are_taken_or_refused_but_never_changed(number: int) -> None:
    try:
        assert load({"DB_POOL_SIZE": str(number)}).db_pool_size == number >= 1
    except StartupError:
        assert number < 1


# Secrets


def test_the_secrets_are_marked() -> None:
    assert {f.metadata["env"] for f in fields(Settings) if f.metadata["secret"]} == SECRETS


def test_secrets_are_not_in_repr() -> None:
    settings = load(dict.fromkeys(SECRETS, "hush-hush") | dict.fromkeys(HEXADECIMAL, KEY))
    assert settings.jwt_secret == settings.pg_password == settings.database_url == "hush-hush"
    for shown in (repr(settings), str(settings), f"{settings}"):
        assert "hush-hush" not in shown
        assert repr(bytes.fromhex(KEY)) not in shown


@given(tail=st.text(max_size=100))
def test_a_refused_secret_is_not_in_the_message(tail: str) -> None:
    with pytest.raises(StartupError) as caught:
        load({"QUEEN_ENCRYPTION_KEY": "hush-hush" + tail})
    assert "hush" not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# The document


def test_each_setting_names_a_variable_of_its_own_and_says_what_it_does() -> None:
    names = [f.metadata["env"] for f in fields(Settings)]
    assert len(set(names)) == len(names)
    assert all(f.metadata["doc"].endswith(".") and "|" not in f.metadata["doc"] for f in fields(Settings))


def test_the_table_has_one_row_for_each_setting() -> None:
    header, rule, *rows = markdown_table().splitlines()
    assert (header, rule) == ("| Variable | Default | Meaning |", "|---|---|---|")
    assert [row.split("`")[1] for row in rows] == [f.metadata["env"] for f in fields(Settings)]
    assert "| `PORT` | `6632` | HTTP port. |" in rows
    assert "| `JWT_SECRET` | – | Key for HS256. |" in rows
    assert "| `PG_SSL_REJECT_UNAUTHORIZED` | `true` | Verify the certificate of the database. |" in rows
    assert any(row.startswith("| `JWT_SKIP_PATHS` | `/health,/metrics/prometheus,/metrics,/` |") for row in rows)


def test_a_default_in_the_table_can_be_set_as_it_is_shown() -> None:
    shown: dict[str, Any] = {}
    for row in markdown_table().splitlines()[2:]:
        env, default = (cell.strip().strip("`") for cell in row.split("|")[1:3])
        shown[env] = "" if default == "–" else default
    assert load(shown) == Settings()


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == refreshed(text), f"run: python {Path(__file__).relative_to(DOCUMENT.parents[1])}"


def refreshed(text: str) -> str:
    return text.partition("| Variable |")[0] + markdown_table()


if __name__ == "__main__":
    DOCUMENT.write_text(refreshed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
