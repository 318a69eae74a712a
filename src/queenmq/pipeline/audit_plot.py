"""The picture of an audit: for each partition what is stored, what is archived and where the groups stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from queenmq.pipeline.errors import PipelineError

MOST: Final = 50
INCHES: Final = 0.28
THICK: Final = 0.36


def draw(
    path: str,
    queue: str,
    stored: dict[str, tuple[int, int]],
    archived: dict[str, tuple[int, int]],
    positions: dict[str, dict[str, int]],
    findings: Sequence[Any],
) -> None:
    """Write a PNG of the first partitions, those with findings first. Raises PipelineError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise PipelineError("no plot without matplotlib: pip install 'queenmq[pipeline]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    guilty = {finding.where.split(", group ")[0] for finding in findings}
    names = sorted({*stored, *archived}, key=lambda name: (name not in guilty, name))[:MOST]
    figure, axes = pyplot.subplots(figsize=(11, 1.8 + INCHES * max(4, len(names))))
    for row, name in enumerate(names):
        _bar(axes, row - THICK / 2, stored.get(name), "C0")
        _bar(axes, row + THICK / 2, archived.get(name), "C2")
    for number, (group, places) in enumerate(sorted(positions.items())):
        rows = [row for row, name in enumerate(names) if name in places]
        axes.plot(
            [places[names[row]] for row in rows], rows, "|", color=f"C{3 + number % 6}", markersize=11, label=group
        )
    axes.set_yticks(range(len(names)), [f"{name} (!)" if name in guilty else name for name in names], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("offset")
    axes.set_title(f"{queue}: stored (blue), archived (green), positions of groups (marks)", fontsize=9)
    if positions:
        axes.legend(fontsize=7)
    figure.tight_layout()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bar(axes: Any, row: float, span: tuple[int, int] | None, color: str) -> None:
    if span is not None and span[1] >= span[0]:
        axes.barh(row, span[1] - span[0] + 1, THICK, left=span[0] - 0.5, color=color)
