"""Reading the settings from the environment, and what is wrong with the names that are set there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from queenmq.config.settings import Settings, declared
from queenmq.errors import StartupError

Group = TypeVar("Group")

OUR_PREFIXES = ("QUEEN_", "JWT_", "PG_")
NOT_SETTINGS = frozenset(
    {
        # Of the commands, and of the tests.
        *("QUEEN_URL", "QUEEN_TOKEN", "QUEEN_CA_FILE", "QUEEN_TRACEBACK", "QUEEN_PIPELINE_JAVA"),
        *(
            "QUEEN_LONG",
            "QUEEN_REQUIRE_BROWSER",
            "QUEEN_REQUIRE_POOLER",
            "QUEEN_REQUIRE_MODELS",
            "QUEEN_REQUIRE_OLDEST",
            "QUEEN_REQUIRE_PYRIGHT",
            "QUEEN_REQUIRE_HISTORY",
            "QUEEN_SIMULATION_SEED",
            "QUEEN_CHAOS_ROUNDS",
        ),
        # Of PostgreSQL's own programs and images.
        *("PG_VERSION", "PG_MAJOR", "PG_CONFIG", "PG_COLOR", "PG_COLORS"),
    }
)

# Of earlier versions, and of the server that the published clients come from. Each says why there is nothing to set.
WITHOUT_EFFECT = {
    "DB_IDLE_TIMEOUT": "idle connections to the database stay open; DB_POOL_SIZE says how many there are",
    **dict.fromkeys(
        (
            "DB_KEEPALIVES_IDLE",
            "DB_KEEPALIVES_INTERVAL",
            "DB_KEEPALIVES_COUNT",
            "DB_TCP_USER_TIMEOUT_MS",
        ),
        "a connection whose other end does not answer is noticed and replaced without such a time",
    ),
    "DB_THREAD_POOL_SERVICE_THREADS": "background work has no threads; NUM_WORKERS is the number of processes",
    "LIBQUEEN_INFLIGHT_DEADLINE_MS": "a call to the database is ended by DB_STATEMENT_TIMEOUT",
    "PARTITION_LOOKUP_RECONCILE_INTERVAL_MS": "heads of partitions are written with each push",
    "PARTITION_LOOKUP_RECONCILE_LOOKBACK_SECONDS": "heads of partitions are written with each push",
    **dict.fromkeys(
        [
            f"QUEEN_CUSTOM_{what}"
            for what in ("PREFERRED_BATCH_SIZE", "MAX_HOLD_MS", "MAX_BATCH_SIZE", "MAX_CONCURRENT")
        ],
        "there are no calls of that kind",
    ),
    "QUEEN_SYNC_CACHE_SHARDS": "caches have no shards, because one thread uses them",
    **dict.fromkeys(
        [f"QUEEN_TRANSACTION_{what}" for what in ("PREFERRED_BATCH_SIZE", "MAX_HOLD_MS", "MAX_BATCH_SIZE")],
        "transactions are never merged with others, and never wait to be",
    ),
    "QUEEN_UDP_NOTIFY_PORT": "servers hear each other at QUEEN_UDP_PORT",
    "QUEUE_BACKOFF_CLEANUP_THRESHOLD": "what is known about long polls is forgotten when the last of them ends",
    **dict.fromkeys(
        ("RESPONSE_TIMER_INTERVAL_MS", "RESPONSE_BATCH_SIZE", "RESPONSE_BATCH_MAX"),
        "an answer is sent as soon as it is there",
    ),
    "SIDECAR_POOL_SIZE": "all calls share the connections of DB_POOL_SIZE",
    **dict.fromkeys(
        ("SIDECAR_MICRO_BATCH_WAIT_MS", "SIDECAR_MAX_BATCH_SIZE", "SIDECAR_MAX_PENDING_COUNT"),
        "what is merged into a call is set for each kind of call, as by QUEEN_PUSH_MAX_HOLD_MS",
    ),
    "WEBAPP_ROOT": "the dashboard is part of the server",
}

# Names of other documents for the same setting.
ALIASES = {"POP_WAIT_BASE_INTERVAL_MS": "POP_WAIT_INITIAL_INTERVAL_MS"}


def load(environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings. An empty variable counts as not set.

    `flags` has values that win over variables, by the variable's name; None was not given.
    Raises StartupError naming the variable that cannot be used.
    """
    source = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    known = {item.metadata["env"]: item for item in declared()}
    if not known.keys() >= given.keys():
        raise TypeError(f"no such settings: {given.keys() - known.keys()}")
    present = {name: value for name, value in source.items() if value != ""}
    present = {ALIASES[name]: present[name] for name in ALIASES if name in present} | present
    values = {env: _parse(item, present[env]) for env, item in known.items() if env in present}
    return _filled(Settings(), values | given)


def _filled(group: Group, values: Mapping[str, Any]) -> Group:
    """The group with these values, by variable, in it and in the groups within it."""
    changes: dict[str, Any] = {}
    for item in fields(group):  # type: ignore[arg-type]
        if is_dataclass(item.default):
            changes[item.name] = _filled(item.default, values)
        elif item.metadata.get("env") in values:
            changes[item.name] = values[item.metadata["env"]]
    return replace(group, **changes)  # type: ignore[type-var]


def _parse(item: Field[Any], raw: str) -> Any:
    try:
        return item.metadata["parse"](raw)
    except ValueError as error:
        shown = "its value" if item.metadata["secret"] else repr(raw)
        raise StartupError(f"{item.metadata['env']} cannot be used: {shown} {error}") from None


def unknown_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Names in the environment that have no effect, each with some advice: those that resemble variables of Queen, and
    those of which it knows why."""
    source = os.environ if environment is None else environment
    settings = {item.metadata["env"] for item in declared()}
    found = {}
    for name, value in source.items():
        if name in WITHOUT_EFFECT:
            found[name] = WITHOUT_EFFECT[name]
        if not name.upper().startswith(OUR_PREFIXES) or name in settings | found.keys() or _is_foreign(name, value):
            continue
        near = get_close_matches(name.upper(), settings, 1)
        advice = f"did you mean {near[0]}?" if near else "docs/configuration.md lists all of them"
        found[name] = advice
    return dict(sorted(found.items()))


def _is_foreign(name: str, value: str) -> bool:
    return (
        name in NOT_SETTINGS
        or name.startswith(("QUEEN_TEST_", "PG_TEST_"))
        # What Kubernetes says about a service called queen, or pg.
        or re.search(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$", name) is not None
        or re.search(r"_PORT(_[0-9]+_(TCP|UDP)(_PROTO|_PORT|_ADDR)?)$", name) is not None
        or re.match(r"(tcp|udp)://", value) is not None
    )
