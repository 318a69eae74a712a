"""`queen completion`: the script with which a shell completes commands, options and queue names."""

from __future__ import annotations

from typing import Final

import click

from queenmq.cli import exits
from queenmq.cli.group import command as command_of

SHELLS: Final = ("bash", "zsh", "fish")


@command_of(
    "completion",
    """echo 'eval "$(queen completion bash)"' >> ~/.bashrc""",
    """echo 'eval "$(queen completion zsh)"' >> ~/.zshrc""",
    "queen completion fish > ~/.config/fish/completions/queen.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print the completion script for a shell. It asks the server for queue names."""
    from click.shell_completion import get_completion_class

    from queenmq.cli.main import COMPLETION_VARIABLE

    made = get_completion_class(shell)
    if made is None:
        raise exits.Failed(f"there is no completion for {shell}")
    print(made(ctx.find_root().command, {}, "queen", COMPLETION_VARIABLE).source())
    return exits.OK
