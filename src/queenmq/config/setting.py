"""How one setting is declared in its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from queenmq.config import parse


def setting(
    env: str, default: Any, doc: str, parser: Callable[[str], Any] = parse.text, *, secret: bool = False
) -> Any:
    """A field that the environment variable `env` sets. A secret is kept out of `repr` and out of error messages.

    `doc` is its sentence in the table of `docs/configuration.md`.
    """
    return field(default=default, repr=not secret, metadata={"env": env, "doc": doc, "parse": parser, "secret": secret})
