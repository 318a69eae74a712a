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
            "QUEEN_SIMULATION_SEED",
            "QUEEN_CHAOS_ROUNDS",
        ),
        # Of the server that the published clients come from; there is nothing here that they could change.
        "QUEEN_UDP_NOTIFY_PORT",
        # Of PostgreSQL's own programs and images.
        *("PG_VERSION", "PG_MAJOR", "PG_CONFIG", "PG_COLOR", "PG_COLORS"),
    }
)

# Once accepted, and never of any effect.
WITHOUT_EFFECT = dict.fromkeys(
    (
        "QUEEN_TRANSACTION_PREFERRED_BATCH_SIZE",
        "QUEEN_TRANSACTION_MAX_HOLD_MS",
        "QUEEN_TRANSACTION_MAX_BATCH_SIZE",
    ),
    "transactions are never merged with others, and never wait to be",
) | {"QUEEN_SYNC_CACHE_SHARDS": "caches have no shards, because one thread uses them"}

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
    """Names in the environment that resemble variables of Queen and have no effect, each with some advice."""
    source = os.environ if environment is None else environment
    settings = {item.metadata["env"] for item in declared()}
    found = {}
    for name, value in source.items():
        if not name.upper().startswith(OUR_PREFIXES) or name in settings or _is_foreign(name, value):
            continue
        near = get_close_matches(name.upper(), settings, 1)
        advice = f"did you mean {near[0]}?" if near else "docs/configuration.md lists all of them"
        found[name] = WITHOUT_EFFECT.get(name, advice)
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
