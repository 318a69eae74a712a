from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.config import HttpSettings, Settings, declared, load, markdown_tables, unknown_variables
from queenmq.config.document import without_effect
from queenmq.config.environment import WITHOUT_EFFECT
from queenmq.errors import StartupError

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
SECRETS = {
    "DATABASE_URL",
    "QUEEN_DB_LISTEN_URL",
    "PG_PASSWORD",
    "QUEEN_ENCRYPTION_KEY",
    "QUEEN_ENCRYPTION_KEYS_PREVIOUS",
    "JWT_SECRET",
    "QUEEN_SYNC_SECRET",
    "QUEEN_SYNC_SECRET_PREVIOUS",
}
HEXADECIMAL = {
    "QUEEN_ENCRYPTION_KEY",
    "QUEEN_ENCRYPTION_KEYS_PREVIOUS",
    "QUEEN_SYNC_SECRET",
    "QUEEN_SYNC_SECRET_PREVIOUS",
}
KEY = "0123456789abcdef" * 4


def refusal(env: str, raw: str) -> str:
    with pytest.raises(StartupError) as caught:
        load({env: raw})
    return caught.value.message


def variables(parser: str) -> list[str]:
    return [f.metadata["env"] for f in declared() if f.metadata["parse"].__name__ == parser]


# Layers


def test_defaults_when_nothing_is_set() -> None:
    assert load({}) == Settings()


def test_the_environment_wins_over_the_default() -> None:
    assert load({"PORT": "7000", "HOST": "0.0.0.0"}) == Settings(http=HttpSettings(port=7000, host="0.0.0.0"))


def test_a_flag_wins_over_the_environment() -> None:
    assert load({"PORT": "7000", "HOST": "h"}, {"PORT": 8000}) == Settings(http=HttpSettings(port=8000, host="h"))


def test_a_flag_that_is_none_was_not_given() -> None:
    assert load({"PORT": "7000"}, {"PORT": None, "HOST": None}).http.port == 7000


def test_a_flag_may_be_false_or_zero() -> None:
    settings = load({"JWT_ENABLED": "true", "PORT": "7000"}, {"JWT_ENABLED": False, "PORT": 0})
    assert (settings.auth.enabled, settings.http.port) == (False, 0)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({f.metadata["env"]: "" for f in declared()}) == Settings()


@pytest.mark.parametrize(("given", "used"), [(("50", ""), 50), (("", "70"), 70), (("50", "70"), 70), (("", ""), None)])
def test_an_empty_variable_hides_no_other_name_of_it(given: tuple[str, str], used: int | None) -> None:
    names = dict(zip(("POP_WAIT_BASE_INTERVAL_MS", "POP_WAIT_INITIAL_INTERVAL_MS"), given, strict=True))
    assert load(names) == load({} if used is None else {"POP_WAIT_INITIAL_INTERVAL_MS": str(used)})


def test_the_process_environment_is_the_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_ID", "from-the-process")
    assert load().server.worker_id == "from-the-process"
    assert load({}).server.worker_id == "worker-1"


def test_variables_of_others_are_ignored() -> None:
    assert load({"PATH": "/bin", "port": "1"}) == Settings()


def test_an_unknown_flag_is_a_defect_of_the_caller() -> None:
    with pytest.raises(TypeError):
        load({}, {"NO_SUCH_SETTING": 1})


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().http.port = 1  # type: ignore[misc]


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
    assert load(environment).database.is_bundled is bundled


# What each parser takes


@pytest.mark.parametrize(
    ("env", "raw", "name", "value"),
    [
        ("WORKER_ID", " as it is ", "server.worker_id", " as it is "),
        ("JWT_ENABLED", "true", "auth.enabled", True),
        ("PG_SSL_REJECT_UNAUTHORIZED", "false", "database.ssl_reject_unauthorized", False),
        ("JWT_CLOCK_SKEW", "0", "auth.clock_skew_s", 0),
        ("DB_POOL_SIZE", "1", "database.pool_size", 1),
        ("PORT", "0", "http.port", 0),
        ("PORT", "65535", "http.port", 65535),
        ("POP_WAIT_BACKOFF_MULTIPLIER", "1", "pop.wait_backoff_multiplier", 1.0),
        ("POP_WAIT_BACKOFF_MULTIPLIER", "100", "pop.wait_backoff_multiplier", 100.0),
        ("QUEEN_DATA_DIR", "/data", "server.data_dir", Path("/data")),
        ("JWT_SKIP_PATHS", " /a, /b/ ,,/ ", "auth.skip_paths", ("/a", "/b/", "/")),
        ("JWT_SKIP_PATHS", ",", "auth.skip_paths", ()),
        ("LOG_LEVEL", "debug", "server.log_level", "debug"),
        ("LOG_LEVEL", " debug\n", "server.log_level", "debug"),
        ("PORT", " 7000 ", "http.port", 7000),
        ("QUEEN_JOURNAL_MAX_BYTES", str(2**40), "journal.max_bytes", 2**40),
        ("QUEEN_ENCRYPTION_KEY", KEY + "\n", "server.encryption_key", bytes.fromhex(KEY)),
        ("QUEEN_ENCRYPTION_KEY", KEY, "server.encryption_key", bytes.fromhex(KEY)),
        ("QUEEN_ENCRYPTION_KEY", KEY.upper(), "server.encryption_key", bytes.fromhex(KEY)),
    ],
)
def test_taken(env: str, raw: str, name: str, value: object) -> None:
    assert attrgetter(name)(load({env: raw})) == value


def flag(env: str, raw: str) -> bool:
    value: bool = by_variable(load({env: raw}))[env]
    return value


def by_variable(group: Any) -> dict[str, Any]:
    """The values of all groups."""
    found: dict[str, Any] = {}
    for item in fields(group):
        value = getattr(group, item.name)
        found |= (
            {item.metadata["env"]: value}
            if "env" in item.metadata
            else by_variable(value)
            if is_dataclass(value)
            else {}
        )
    return found


@pytest.mark.parametrize("env", variables("parse_flag"))
def test_a_flag_takes_the_usual_words_in_any_case(env: str) -> None:
    for raw in ("true", "True", "TRUE", "1", "yes", "Yes", "on", "ON", " true", "true ", "\ttrue\r\n"):
        assert flag(env, raw) is True, raw
    for raw in ("false", "False", "FALSE", "0", "no", "NO", "off", " false ", "false\r"):
        assert flag(env, raw) is False, raw


@pytest.mark.parametrize("env", variables("parse_flag"))
@pytest.mark.parametrize("raw", ["ture", "enabled", "y", "t", "2", "-1", "01", "true;", "'true'", " ", "tru\u0435"])
def test_a_word_that_is_no_flag_stops_the_start(env: str, raw: str) -> None:
    expected = "must be true or false (or yes or no, on or off, 1 or 0)"
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {expected}"


@given(raw=st.text(min_size=1, max_size=12))
def test_no_text_switches_tokens_off_but_the_words_for_it(raw: str) -> None:
    try:
        on = load({"JWT_ENABLED": raw}).auth.enabled
    except StartupError:
        return
    assert on is (raw.strip().lower() in ("true", "1", "yes", "on"))
    assert on or raw.strip().lower() in ("false", "0", "no", "off")


def test_a_path_may_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load({"QUEEN_DATA_DIR": "~/queen"}).server.data_dir == Path("/home/somebody/queen")


# What each parser refuses


@pytest.mark.parametrize("env", variables("positive"))
@pytest.mark.parametrize("raw", ["0", "-1", "1.5", "many", "1e3", "0x10", " ", "1_000", "\u0663", "2147483648", "nan"])
def test_positive_numbers(env: str, raw: str) -> None:
    known = {"0": "must be at least 1", "-1": "must be at least 1", "2147483648": "must be at most 2147483647"}
    reason = known.get(raw, "is not a number")
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize("env", variables("count"))
@pytest.mark.parametrize(("raw", "reason"), [("-1", "must not be negative"), ("few", "is not a number")])
def test_counts(env: str, raw: str, reason: str) -> None:
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize("env", variables("port_number"))
@pytest.mark.parametrize("raw", ["-1", "65536", "http", "80/tcp"])
def test_ports(env: str, raw: str) -> None:
    reason = "must be between 0 and 65535" if raw in ("-1", "65536") else "is not a number"
    assert refusal(env, raw) == f"{env} cannot be used: {raw!r} {reason}"


@pytest.mark.parametrize("env", variables("factor"))
@pytest.mark.parametrize("raw", ["0.99", "100.1", "-1", "nan", "inf", "-inf", "double"])
def test_factors(env: str, raw: str) -> None:
    reason = "must be between 1 and 100" if raw in ("0.99", "100.1", "-1") else "is not a number"
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
        assert load({"DB_POOL_SIZE": str(number)}).database.pool_size == number >= 1
    except StartupError:
        assert not 1 <= number < 2**31


@pytest.mark.parametrize("env", variables("share"))
@pytest.mark.parametrize("raw", ["nan", "inf", "-0.1", "1.1", "0,5", "1_0", "half"])
def test_shares(env: str, raw: str) -> None:
    refusal(env, raw)


@pytest.mark.parametrize("env", variables("byte_count"))
@pytest.mark.parametrize("raw", ["0", "-1", "16M", "1e9", str(2**60)])
def test_sizes(env: str, raw: str) -> None:
    refusal(env, raw)


# Names


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("JWT_ENABLE", "did you mean JWT_ENABLED?"),
        ("JWT_ENABELD", "did you mean JWT_ENABLED?"),
        ("jwt_enabled", "did you mean JWT_ENABLED?"),
        ("PG_USESSL", "did you mean PG_USE_SSL?"),
        ("QUEEN_UPD_PEERS", "did you mean QUEEN_UDP_PEERS?"),
        ("QUEEN_WHOLLY_STRANGE", "docs/configuration.md lists all of them"),
        ("QUEEN_SYNC_CACHE_SHARDS", "caches have no shards, because one thread uses them"),
        ("QUEEN_TRANSACTION_MAX_BATCH_SIZE", "transactions are never merged with others, and never wait to be"),
        ("QUEEN_CUSTOM_MAX_CONCURRENT", "there are no calls of that kind"),
        ("QUEEN_UDP_NOTIFY_PORT", "servers hear each other at QUEEN_UDP_PORT"),
        ("DB_IDLE_TIMEOUT", "idle connections to the database stay open; DB_POOL_SIZE says how many there are"),
        ("SIDECAR_POOL_SIZE", "all calls share the connections of DB_POOL_SIZE"),
        ("WEBAPP_ROOT", "the dashboard is part of the server"),
    ],
)
def test_a_name_without_effect_gets_advice(name: str, advice: str) -> None:
    assert unknown_variables({name: "true"}) == {name: advice}


def test_variables_without_effect_are_in_the_document_and_name_only_settings() -> None:
    settings = {item.metadata["env"] for item in declared()}
    document = DOCUMENT.read_text(encoding="utf-8")
    for name, reason in WITHOUT_EFFECT.items():
        assert name not in settings
        assert f"`{name}`" in document
        assert set(re.findall(r"[A-Z]+(?:_[A-Z]+)+", reason)) <= settings


def test_a_setting_may_have_another_name() -> None:
    assert load({"POP_WAIT_BASE_INTERVAL_MS": "250"}).pop.wait_initial_interval_ms == 250
    both = {"POP_WAIT_BASE_INTERVAL_MS": "250", "POP_WAIT_INITIAL_INTERVAL_MS": "300"}
    assert load(both).pop.wait_initial_interval_ms == 300


def test_names_that_are_ours_or_of_others_are_no_reason_to_warn() -> None:
    others = [
        *("PGHOST", "PGSSLMODE", "PG_VERSION", "QUEEN_URL", "QUEEN_TOKEN", "QUEEN_CA_FILE", "QUEEN_LONG", "PATH"),
        *("QUEEN_TEST_POSTGRES", "QUEEN_TEST_CHROMIUM", "QUEEN_PIPELINE_JAVA", "DB_IDLE", "WEBAPP"),
        *("QUEEN_SERVICE_HOST", "QUEEN_SERVICE_PORT", "QUEEN_SERVICE_PORT_HTTP", "QUEEN_PORT_6632_TCP_ADDR"),
    ]
    known = dict.fromkeys([f.metadata["env"] for f in declared()] + others, "1")
    assert unknown_variables(known | {"QUEEN_PORT": "tcp://10.0.0.1:6632"}) == {}
    assert unknown_variables({"QUEEN_PORT": "6632"}) == {"QUEEN_PORT": "did you mean QUEEN_UDP_PORT?"}


# Secrets


def test_the_secrets_are_marked() -> None:
    assert {f.metadata["env"] for f in declared() if f.metadata["secret"]} == SECRETS


def test_secrets_are_not_in_repr() -> None:
    settings = load(dict.fromkeys(SECRETS, "hush-hush") | dict.fromkeys(HEXADECIMAL, KEY))
    assert settings.auth.secret == settings.database.password == settings.database.url == "hush-hush"
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
    names = [f.metadata["env"] for f in declared()]
    assert len(set(names)) == len(names)
    assert all(f.metadata["doc"].endswith(".") and "|" not in f.metadata["doc"] for f in declared())


def rows_of_the_tables() -> list[str]:
    return [line for line in markdown_tables().splitlines() if line.startswith("| `")]


def test_the_tables_have_one_row_for_each_setting() -> None:
    rows = rows_of_the_tables()
    assert markdown_tables().startswith("## The server\n\n| Variable | Default | Meaning |\n|---|---|---|\n| `")
    assert [row.split("`")[1] for row in rows] == [f.metadata["env"] for f in declared()]
    assert "| `PORT` | `6632` | HTTP port to listen on; 0 lets the system choose one. |" in rows
    assert "| `JWT_SECRET` | – | Secret key for HS256, of at least 32 bytes. |" in rows
    assert "| `DB_STATEMENT_TIMEOUT` | `30000` | Longest time for a single statement, in ms. |" in rows
    assert any(row.startswith("| `PG_SSL_REJECT_UNAUTHORIZED` | `true` |") for row in rows)
    assert any(row.startswith("| `JWT_SKIP_PATHS` | `/health,/metrics/prometheus,/metrics,/` |") for row in rows)


def test_a_default_in_the_table_can_be_set_as_it_is_shown() -> None:
    shown: dict[str, Any] = {}
    for row in rows_of_the_tables():
        env, default = (cell.strip().strip("`") for cell in row.split("|")[1:3])
        shown[env] = "" if default == "–" else default
    assert load(shown) == Settings()


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == refreshed(text), f"run: python {Path(__file__).relative_to(DOCUMENT.parents[1])}"


def refreshed(text: str) -> str:
    return text.partition("## ")[0] + markdown_tables() + "\n" + without_effect()


if __name__ == "__main__":
    DOCUMENT.write_text(refreshed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
