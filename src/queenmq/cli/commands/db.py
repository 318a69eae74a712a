"""`queen db`: how to connect to the bundled PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import click

from queenmq.cli.arguments import data_dir
from queenmq.cli.group import group, under


@group("db", 'psql "$(queen db url)"')
def command() -> None:
    """Show how to connect to the bundled PostgreSQL."""


@under(command, "url", 'psql "$(queen db url)"')
@data_dir
@click.option("--administrator", is_flag=True, help="Print the URL of the administrator, who is superuser.")
def url(data_dir: Path | None, administrator: bool) -> None:
    """Print the connection URL of the bundled PostgreSQL that runs on the data folder.

    Its role is the server's: an ordinary one that owns the database.
    """
    from queenmq import config
    from queenmq.storage.embedded import default_data_dir, running_url

    settings = config.load(flags={"QUEEN_DATA_DIR": data_dir})
    print(running_url(settings.server.data_dir or default_data_dir(), administrator=administrator))
