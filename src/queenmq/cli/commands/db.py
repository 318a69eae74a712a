"""`queen db`: how to connect to the bundled PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from queenmq.cli.arguments import data_dir
from queenmq.cli.group import group, under


@group("db", 'psql "$(queen db url)"')
def command() -> None:
    """Show how to connect to the bundled PostgreSQL."""


@under(command, "url", 'psql "$(queen db url)"')
@data_dir
def url(data_dir: Path | None) -> None:
    """Print the connection URL of the bundled PostgreSQL that runs on the data folder."""
    from queenmq import config
    from queenmq.storage.embedded import default_data_dir, running_url

    settings = config.load(flags={"QUEEN_DATA_DIR": data_dir})
    print(running_url(settings.server.data_dir or default_data_dir()))
