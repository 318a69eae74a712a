"""The tables of `docs/configuration.md`."""

from __future__ import annotations

from dataclasses import fields

from queenmq.config.settings import Settings, declared

_HEADER = "| Variable | Default | Meaning |\n|---|---|---|\n"


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
