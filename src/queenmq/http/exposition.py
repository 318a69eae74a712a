"""Metrics as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from queenmq.core.histogram import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]
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
        self._family(kind, name, about).append(_sample(name, value, labels))

    def histogram(self, name: str, about: str, measured: Histogram, **labels: object) -> None:
        family = self._family("histogram", name, about)
        for bound, count in measured.cumulative():
            family.append(_sample(f"{name}_bucket", count, {**labels, "le": _bound(bound)}))
        family.append(_sample(f"{name}_sum", measured.sum, labels))
        family.append(_sample(f"{name}_count", measured.count, labels))

    def _family(self, kind: Kind, name: str, about: str) -> list[str]:
        return self._families.setdefault(name, [f"# HELP {name} {about}", f"# TYPE {name} {kind}"])

    def text(self) -> bytes:
        return "".join(f"{line}\n" for family in self._families.values() for line in family).encode()


def _sample(name: str, value: float, labels: Labels) -> str:
    shown = ",".join(f'{label}="{_escape(str(text))}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}"


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
