"""Metrics as families of samples, and as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from queenmq.core.histogram import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    value: float
    labels: Labels


@dataclass(slots=True)
class Family:
    """Samples of one kind. Those of a histogram have names of their own, which begin with the name of the family."""

    name: str
    kind: Kind
    about: str
    samples: list[Sample] = field(default_factory=list)

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for sample in self.samples:
            shown = ",".join(f'{label}="{_escape(str(text))}"' for label, text in sample.labels.items())
            yield f"{sample.name}{{{shown}}} {sample.value!r}" if shown else f"{sample.name} {sample.value!r}"


class Exposition:
    """Families in the order in which they are first mentioned; a family without a sample is left out."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def counter(self, name: str, about: str, value: float | None, **labels: object) -> None:
        self._add("counter", name, about, value, labels)

    def gauge(self, name: str, about: str, value: float | None, **labels: object) -> None:
        self._add("gauge", name, about, value, labels)

    def histogram(self, name: str, about: str, measured: Histogram, **labels: object) -> None:
        samples = self._family("histogram", name, about).samples
        for bound, count in measured.cumulative():
            samples.append(Sample(f"{name}_bucket", count, {**labels, "le": _bound(bound)}))
        samples.append(Sample(f"{name}_sum", measured.sum, labels))
        samples.append(Sample(f"{name}_count", measured.count, labels))

    def _add(self, kind: Kind, name: str, about: str, value: float | None, labels: Labels) -> None:
        if value is not None:
            self._family(kind, name, about).samples.append(Sample(name, value, labels))

    def _family(self, kind: Kind, name: str, about: str) -> Family:
        return self._families.setdefault(name, Family(name, kind, about))

    def families(self) -> list[Family]:
        return list(self._families.values())

    def text(self) -> bytes:
        return "".join(f"{line}\n" for family in self._families.values() for line in family.lines()).encode()


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
