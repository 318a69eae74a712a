"""`queen bench`: in a checkout of the sources the command of `queen_bench`; elsewhere a word about where that is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from queenmq.cli import exits, extras
from queenmq.cli.group import Command


def _command() -> click.Command:
    try:
        found: click.Command = import_module("queen_bench.command").command
    except ModuleNotFoundError as missing:
        if missing.name != "queen_bench":
            raise
        return _absent()
    return found


def _absent() -> Command:
    def refuse(**_: Any) -> int:
        raise exits.Failed(extras.BENCH)

    anything = click.Argument(["options"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    return Command("bench", callback=refuse, params=[anything], context_settings=settings, help=extras.BENCH)


command = _command()
