"""Types of option values, and the options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from queenmq.core.names import parse_timestamp
from queenmq.errors import InvalidRequest

Function = TypeVar("Function", bound=Callable[..., Any])


class Kind(click.ParamType[Any]):
    """A value that a function parses from text; the function raises ValueError with the reason."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            return self.fail(str(error), param, ctx)


def _count(raw: str) -> int:
    if not raw.isdecimal() or int(raw) < 1:
        raise ValueError(f"{raw!r} is not a whole number above 0")
    return int(raw)


_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|min|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}


def _amount(raw: str) -> float:
    try:
        value = float(raw)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{raw!r} is not a number above 0")
    return value


def _moment(raw: str) -> datetime:
    try:
        return parse_timestamp(raw, "the time")
    except InvalidRequest as error:
        raise ValueError(error.message) from None


def _names(raw: str) -> list[str]:
    return [name.strip() for name in raw.split(",") if name.strip()]


def _pair(raw: str) -> tuple[str, str]:
    name, separator, value = raw.partition("=")
    if not separator or not name:
        raise ValueError(f"{raw!r} is not NAME=VALUE")
    return name, value


def _duration(raw: str) -> float:
    match = _DURATION.fullmatch(raw)
    if match is None:
        raise ValueError(f"{raw!r} is not a duration such as 90s, 15m, 2h or 1d")
    return float(match["number"]) * _SECONDS[match["unit"]]


COUNT = Kind("N", _count)
AMOUNT = Kind("NUMBER", _amount)
DURATION = Kind("DURATION", _duration)
MOMENT = Kind("TIME", _moment)
NAMES = Kind("NAMES", _names)
PAIR = Kind("NAME=VALUE", _pair)
FOLDER = click.Path(path_type=Path)


def data_dir(function: Function) -> Function:
    """The folder of the bundled PostgreSQL."""
    return click.option(
        "--data-dir", type=FOLDER, metavar="FOLDER", help="Data folder of the bundled PostgreSQL (QUEEN_DATA_DIR)."
    )(function)


def headers(function: Function) -> Function:
    return click.option(
        "--header", "headers", type=PAIR, multiple=True, metavar="NAME=VALUE", help="Header of the message; repeatable."
    )(function)


def as_json(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, for scripts.")(function)


def consent(function: Function) -> Function:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(function)
