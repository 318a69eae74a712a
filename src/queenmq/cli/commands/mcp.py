"""`queen mcp`: an MCP server on standard input and output, for assistants."""

from __future__ import annotations

import click

from queenmq.cli import exits
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import server, servers, token, trusted_context


@command_of("mcp", "queen mcp", "queen --server https://queen.example --token @token mcp --read-only")
@click.option("--read-only", is_flag=True, help="Offer no tool that changes anything.")
@server
def command(read_only: bool, server: str) -> None:
    """Serve MCP (Model Context Protocol) on standard input and output, for an assistant that starts this command.

    Its tools: status, explain, lag, search, dead_letters, and redrive, for which the host of the assistant asks a
    person first. It needs `pip install 'queenmq[mcp]'`. docs/how-to/assistants.md says how hosts are configured.
    """
    from queenmq.client import Queen
    from queenmq.integrations.mcp import mcp_server

    urls, bearer, context = servers(server), token(), trusted_context()
    try:
        Queen(urls)
    except ValueError as error:
        raise exits.Failed(f"--server is not valid: {error}", exits.USAGE) from None
    made = mcp_server(lambda: Queen(urls, bearer_token=bearer, ssl_context=context), read_only=read_only)
    made.run("stdio")
