"""Metrics as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge"]
Labels = Mapping[str, object]


class Exposition:
    """Families in the order in which they are first told of; a family without a sample is left out."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def counter(self, name: str, about: str, value: float | None, **labels: object) -> None:
        self._tell("counter", name, about, value, labels)

    def gauge(self, name: str, about: str, value: float | None, **labels: object) -> None:
        self._tell("gauge", name, about, value, labels)

    def _tell(self, kind: Kind, name: str, about: str, value: float | None, labels: Labels) -> None:
        if value is None:
            return
        family = self._families.setdefault(name, [f"# HELP {name} {about}", f"# TYPE {name} {kind}"])
        shown = ",".join(f'{label}="{_escape(str(text))}"' for label, text in labels.items())
        family.append(f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}")

    def text(self) -> bytes:
        return "".join(f"{line}\n" for family in self._families.values() for line in family).encode()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
