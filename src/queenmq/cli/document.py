"""The reference in docs/cli.md, made from the commands themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from queenmq.cli.exits import MEANINGS
from queenmq.cli.group import Context
from queenmq.cli.main import queen


def reference() -> str:
    """Exit statuses, and every command with its options and examples."""
    rows = "".join(f"| {status} | {meaning} |\n" for status, meaning in MEANINGS.items())
    statuses = f"## Exit statuses\n\n| status | meaning |\n|---|---|\n{rows}"
    context = Context(queen, info_name="queen")
    return statuses + "".join(_section(command, context) for command in _commands(queen, context))


def _commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        if (command := group.get_command(context, name)) is not None:
            yield command


def _section(command: click.Command, parent: click.Context) -> str:
    context = Context(command, info_name=command.name, parent=parent)
    depth = "##" if parent.parent is None else "###"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"\n{depth} {context.command_path}\n\n{_paragraphs(command.help or '')}\n\n    {usage}\n"]
    if options := _options(command, context):
        parts.append(f"\n| option | |\n|---|---|\n{options}")
    if examples := getattr(command, "examples", ()):
        parts.append("\n```sh\n" + "".join(f"{example}\n" for example in examples) + "```\n")
    if isinstance(command, click.Group):
        parts += [_section(inner, context) for inner in _commands(command, context)]
    return "".join(parts)


def _paragraphs(text: str) -> str:
    return "\n\n".join(_wrapped(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _options(command: click.Command, context: click.Context) -> str:
    records = [param.get_help_record(context) for param in command.params if isinstance(param, click.Option)]
    return "".join(f"| `{_cell(record[0])}` | {_cell(record[1])} |\n" for record in records if record is not None)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
