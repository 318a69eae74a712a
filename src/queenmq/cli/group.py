"""Classes on top of Click: commands are imported on first use, and their help ends with examples.

Each command is a module under `commands`, so that `queen serve` does not import the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import click

HELP: Final = ("-h", "--help")

# The options of commands that talk to a server, and under which key of the context what is said before the command is
# kept: the name of the variable that says the same.
OF_SERVERS: Final = {"--server": "QUEEN_URL", "--token": "QUEEN_TOKEN", "--cacert": "QUEEN_CA_FILE"}


_NAMES: Final = frozenset({"queue", "queues", "partition", "partitions", "group"})


class Formatter(click.HelpFormatter):
    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, "usage: " if prefix is None else prefix)


class Context(click.Context):
    formatter_class = Formatter

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"help_option_names": HELP} | attributes)


class _WithExamples(click.Command):
    """A command whose help ends with examples."""

    context_class = Context
    examples: tuple[str, ...] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Command(_WithExamples):
    """One command."""

    def invoke(self, ctx: click.Context) -> Any:
        own = {name for param in self.params for name in param.opts}
        for option, variable in OF_SERVERS.items():
            if variable in ctx.meta and option not in own:
                why = "--host and --port say where it listens" if "--port" in own else "it does not talk to a server"
                raise click.UsageError(f"`{ctx.command_path}` takes no {option}: {why}.", ctx)
        for param in self.params:
            given = ctx.params.get(param.name or "") if param.name in _NAMES else None
            if given == "" or (isinstance(given, tuple) and "" in given):
                # Such as "$CUSTOMER" where nobody has set it: not all partitions are meant, nor the default one.
                raise click.BadParameter("the name is empty.", ctx, param)
        return super().invoke(ctx)


class Group(_WithExamples, click.Group):
    """A group of commands. `default` is the subcommand that runs when none is named."""

    context_class = Context
    command_class = Command
    default: str | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.default is not None and not ctx.resilient_parsing and _names_none(args):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            listing = self.commands.get("list")
            takes = [param for param in (listing.params if listing else ()) if isinstance(param, click.Argument)]
            if not takes or error.possibilities:
                raise
            told = f"{error.message} Did you mean `{ctx.command_path} list {args[0]}`?"
            raise click.exceptions.NoSuchCommand(args[0], told, ctx=ctx) from None


def _names_none(args: list[str]) -> bool:
    return not args or (args[0].startswith("-") and args[0] not in HELP)


# Words of other queues and tools, and where to find here what they mean.
_ELSEWHERE: Final = {
    "lag": "`queen groups` and `queen groups lagging`",
    "delay": "`queen timers set`",
    "schedule": "`queen timers set`",
    "redrive": "`queen dlq redrive`",
    "replay": "`queen seek`",
    "send": "`queen push`",
    "publish": "`queen push`",
    "consume": "`queen pop` and `queen tail`",
    "receive": "`queen pop`",
    "subscribe": "`queen tail`",
    "pause": "`queen queues pause`",
    "resume": "`queen queues resume`",
    "create": "`queen queues create`",
    "health": "`queen status` and `queen doctor`",
    "config": "`queen queues set` and `queen apply`",
    "locks": "`queen kv locks`",
    "release": "`queen leases release`",
}


class LazyGroup(Group):
    """Commands that are imported on first use; `known` maps their names to one-line descriptions."""

    def __init__(self, *args: Any, known: Mapping[str, str], package: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._known = known
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._known:
            return None
        found: click.Command = import_module(f"{self._package}.{cmd_name}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._known and not name.startswith("-"):
            if (meant := _ELSEWHERE.get(name)) is not None:
                raise click.exceptions.NoSuchCommand(name, f"No such command {name!r}; see {meant}.", ctx=ctx)
            raise click.exceptions.NoSuchCommand(name, possibilities=self._known, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._known.items()))


Function = Callable[..., Any]


def command(name: str, *examples: str, **attributes: Any) -> Callable[[Function], Command]:
    """A command with the examples that its help ends with."""

    def made(function: Function) -> Command:
        built = click.command(name, cls=Command, **attributes)(function)
        built.examples = examples
        return built

    return made


def group(name: str, *examples: str, default: str | None = None, **attributes: Any) -> Callable[[Function], Group]:
    """A group of commands."""

    def made(function: Function) -> Group:
        built = click.group(name, cls=Group, **attributes)(function)
        built.examples = examples
        built.default = default
        return built

    return made


def under(parent: Group, name: str, *examples: str, **attributes: Any) -> Callable[[Function], Command]:
    """A command of a group."""

    def made(function: Function) -> Command:
        built = command(name, *examples, **attributes)(function)
        parent.add_command(built)
        return built

    return made
