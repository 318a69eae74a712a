"""A word about a queue that does not exist. A consumer waits for it, as it should, but its name may be misspelt."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Final

from queenmq.client.errors import NotFound, QueenError
from queenmq.client.verbs import Verbs, path_of

LOOK_S = 5.0  # without a message, or earlier when a poll comes back with none
_MOST_COMPARED: Final = 1000
_V1: Final = ("api", "v1")
_SKETCH: Final = {"includePartitions": "false", "limit": 1}


async def missing_queue(verbs: Verbs, name: str) -> str | None:
    """A sentence that says so; None if the queue exists, has timers that will make it, or nobody can say."""
    if not await _may_read(verbs):
        return None
    try:
        await verbs.ask("GET", path_of(*_V1, "status", "queues", name), params=_SKETCH)
    except NotFound:
        pass
    except QueenError:
        return None
    else:
        return None
    timers = await _asked(verbs, path_of(*_V1, "timers", name), {"limit": 1})
    if timers is None or timers.get("rows"):
        return None
    listed = await _asked(verbs, path_of(*_V1, "resources", "queues"), {"limit": _MOST_COMPARED}) or {}
    near = get_close_matches(name, [one["name"] for one in listed.get("queues", ())], 1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return f"there is no queue {name!r} yet{meant} The first push creates it."


async def _may_read(verbs: Verbs) -> bool:
    """Whether the token may read every queue that it may pop from. Refusals stay in the audit log of the server, and
    consumers start often."""
    session = await _asked(verbs, path_of(*_V1, "session"), {})
    if session is None:
        return False
    allowed = [grant.get("allow") for grant in session.get("grants", ())]
    return all(not verbs_of or "read" in verbs_of for verbs_of in allowed)


async def _asked(verbs: Verbs, path: str, params: dict[str, Any]) -> dict[str, Any] | None:
    try:
        answer = await verbs.ask("GET", path, params=params)
    except QueenError:
        return None
    return answer if isinstance(answer, dict) else None
