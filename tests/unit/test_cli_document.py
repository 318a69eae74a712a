"""docs/cli.md is made from the commands, so it cannot go stale; and every command is fit to be in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from queenmq.cli.commands import KNOWN
from queenmq.cli.document import reference
from queenmq.cli.group import Context
from queenmq.cli.main import main, queen

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(queen))


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == refreshed(text), f"run: python {Path(__file__).relative_to(DOCUMENT.parents[1])}"


def test_every_command_that_is_listed_exists() -> None:
    for name, about in KNOWN.items():
        command = ALL[(name,)]
        assert command.name == name
        assert about.endswith(".")


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_of_every_command_shows_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: queen {' '.join(path)}")
    assert "\nExample" in told
    assert f"queen {path[0]}" in told.partition("\nExample")[2]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    for param in ALL[path].params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            assert param.help.endswith((".", "…")), param.help


def refreshed(text: str) -> str:
    return text.partition("## Exit statuses")[0] + reference()


if __name__ == "__main__":
    DOCUMENT.write_text(refreshed(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
