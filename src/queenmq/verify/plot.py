"""A history as a picture: what each process did when, how it ended, which faults there were, and what was broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Final

from queenmq.verify.history import Event, Fault, Operation, operations
from queenmq.verify.verdict import Verdict

_WIDTH: Final = 1200
_LEFT: Final = 150
_TOP: Final = 64
_ROW: Final = 14
_RATES: Final = 70
_COLUMN: Final = 2
_COLOURS: Final = {"ok": "#3a7d44", "fail": "#d98e04", "info": "#8e44ad", "broken": "#c0392b"}
_MEANINGS: Final = {
    "ok": "took place",
    "fail": "refused, nothing kept",
    "info": "unknown outcome",
    "broken": "shows a broken promise",
}
_STYLE: Final = (
    "text{font:11px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}.axis{stroke:#999}"
    ".fault{fill:#c0392b;fill-opacity:.13}.name{font-size:10px;fill:#7b241c}"
)


def plot(title: str, history: Sequence[Event], verdict: Verdict) -> str:
    """An SVG document. Its size is bounded by the number of processes, however long the history is."""
    done = operations(history)
    faults = [event for event in history if isinstance(event, Fault)]
    first = min([one.begun for one in done] + [fault.at for fault in faults], default=0.0)
    last = max([_end(one) for one in done] + [fault.ended for fault in faults], default=first)
    scale = (_WIDTH - _LEFT - 20) / max(last - first, 1e-9)

    def at(moment: float) -> float:
        return _LEFT + (moment - first) * scale

    broken = {op for violation in verdict.violations for op in violation.ops}
    rows = {name: number for number, name in enumerate(dict.fromkeys(one.process for one in done))}
    bottom = _TOP + _RATES + len(rows) * _ROW + 8
    parts = [f'<text x="10" y="20" class="title">{escape(title)}</text>', *_legend()]
    for number, fault in enumerate(faults):
        x, width = at(fault.at), max((fault.ended - fault.at) * scale, 1)
        parts.append(f'<rect class="fault" x="{x:.1f}" y="{_TOP}" width="{width:.1f}" height="{bottom - _TOP}"/>')
        parts.append(f'<text class="name" x="{x:.1f}" y="{_TOP - 2 - 9 * (number % 2)}">{escape(fault.name)}</text>')
    parts += _rates(done, first, scale)
    for name, number in rows.items():
        parts.append(f'<text x="10" y="{_y(number) + 10}">{escape(name)}</text>')
    parts += _marks(done, rows, broken, first, scale)
    parts += _axis(first, last, scale, bottom)
    size = f'width="{_WIDTH}" height="{bottom + 30}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>\n{body}\n</svg>\n'


def _end(one: Operation) -> float:
    return one.begun if one.ended == float("inf") else one.ended


def _y(row: int) -> int:
    return _TOP + _RATES + row * _ROW


def _legend() -> list[str]:
    parts = []
    for number, (name, meaning) in enumerate(_MEANINGS.items()):
        x = _LEFT + number * 190
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{_COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 14}" y="39">{meaning}</text>')
    return parts


def _rates(done: Sequence[Operation], first: float, scale: float) -> list[str]:
    """Operations by the moment of their answers, in columns, stacked by outcome."""
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in done:
        counts[int((_end(one) - first) * scale) // _COLUMN][one.outcome] += 1
    most = max((sum(column.values()) for column in counts.values()), default=1)
    parts = [f'<text x="10" y="{_TOP + 12}">operations</text>']
    for column, by_outcome in sorted(counts.items()):
        y = float(_TOP + _RATES - 6)
        for outcome, count in sorted(by_outcome.items(), reverse=True):
            height = count / most * (_RATES - 12)
            y -= height
            parts.append(_rectangle(column, y, height, _COLOURS[outcome]))
    return parts


def _marks(done: Sequence[Operation], rows: dict[str, int], broken: set[int], first: float, scale: float) -> list[str]:
    """Each process has a row; of what falls into one column, the worst is shown."""
    order = list(_COLOURS)
    worst: dict[tuple[int, int], int] = {}
    for one in done:
        rank = order.index("broken" if one.op in broken else one.outcome)
        begin, end = ((moment - first) * scale for moment in (one.begun, _end(one)))
        for column in range(int(begin) // _COLUMN, int(end) // _COLUMN + 1):
            place = (rows[one.process], column)
            worst[place] = max(worst.get(place, 0), rank)
    return [
        _rectangle(column, _y(row) + 2, _ROW - 4, _COLOURS[order[rank]])
        for (row, column), rank in sorted(worst.items())
    ]


def _rectangle(column: int, y: float, height: float, colour: str) -> str:
    x = _LEFT + column * _COLUMN
    return f'<rect x="{x}" y="{y:.1f}" width="{_COLUMN}" height="{height:.1f}" fill="{colour}"/>'


def _axis(first: float, last: float, scale: float, bottom: int) -> list[str]:
    step = next((s for s in (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600) if (last - first) / s <= 20), 7200)
    parts = [f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH - 20}" y2="{bottom}"/>']
    moments = range(0, int(last - first) + 1, step)
    return parts + [f'<text x="{_LEFT + s * scale:.1f}" y="{bottom + 14}">{s} s</text>' for s in moments]
