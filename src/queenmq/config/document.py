"""The tables of `docs/configuration.md`."""

from __future__ import annotations

import re
from dataclasses import fields

from queenmq.config.environment import WITHOUT_EFFECT
from queenmq.config.settings import Settings, declared

_HEADER = "| Variable | Default | Meaning |\n|---|---|---|\n"
_ABOUT_NOTHING = """\
These variables of earlier versions, and of the server that the published clients come from, are known and change
nothing. The server says so at the start if one of them is set.

"""


def markdown_tables() -> str:
    """One table for each group, headed by the first words of the group's docstring, with a row for each setting."""
    return "\n".join(_section(item.default) for item in fields(Settings))


def _section(group: object) -> str:
    title = (group.__doc__ or "").partition(":")[0]
    rows = (
        f"| `{item.metadata['env']}` | {_shown(item.default)} | {item.metadata['doc']} |\n" for item in declared(group)
    )
    return f"## {title}\n\n{_HEADER}{''.join(rows)}"


def _shown(default: object) -> str:
    if default in (None, "", ()):
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{','.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


def without_effect() -> str:
    """A table of the variables that are known and change nothing."""
    reasons: dict[str, list[str]] = {}
    for name, reason in sorted(WITHOUT_EFFECT.items()):
        reasons.setdefault(re.sub(r"[A-Z]+(_[A-Z]+)+", r"`\g<0>`", reason), []).append(f"`{name}`")
    rows = (f"| {', '.join(names)} | {reason[0].upper()}{reason[1:]}. |\n" for reason, names in reasons.items())
    return f"## Without effect\n\n{_ABOUT_NOTHING}| Variable | Why |\n|---|---|\n{''.join(rows)}"
