"""Settings for tests: `settings_with(http={"max_items": 3})`, and `changed(settings, …)` for a fixture's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from queenmq.config import DatabaseSettings, HttpSettings, OverloadSettings, Settings

Group = TypeVar("Group")

# A free port, no long wait for tests that leave requests behind, no push that is deferred or refused and no database
# that counts as away because the machine is busy with something else.
_LONG_MS = 600_000
_FOR_TESTS = Settings(
    http=HttpSettings(port=0, shutdown_grace_s=2),
    database=DatabaseSettings(connection_timeout_ms=60_000, outage_after_ms=_LONG_MS),
    overload=OverloadSettings(wait_threshold_ms=_LONG_MS, standing_wait_ms=_LONG_MS, loop_threshold_ms=_LONG_MS),
)
# The same for pushes to servers that are processes.
NEVER_BUSY = {
    "QUEEN_PUSH_WAIT_THRESHOLD_MS": str(_LONG_MS),
    "QUEEN_PUSH_STANDING_WAIT_MS": str(_LONG_MS),
    "QUEEN_PUSH_LOOP_THRESHOLD_MS": str(_LONG_MS),
}


def settings_with(**groups: Mapping[str, Any]) -> Settings:
    """Settings of a server on a free port, with these values in these groups."""
    return changed(_FOR_TESTS, **groups)


def changed(group: Group, **values: Any) -> Group:
    """The settings with other values; those of a group within are a mapping of its own."""
    for name, value in values.items():
        current = getattr(group, name)
        if is_dataclass(current):
            values[name] = changed(current, **value)
    made: Group = replace(group, **values)  # type: ignore[type-var]
    return made
