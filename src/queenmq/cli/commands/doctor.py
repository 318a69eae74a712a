"""`queen doctor`: check the set-up and say what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from queenmq.cli import exits
from queenmq.cli.arguments import as_json, data_dir
from queenmq.cli.finding import Finding, bad, doubtful, good
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import TOKEN_VARIABLE, URL_VARIABLE, server, servers
from queenmq.cli.show import console, plural, print_json

if TYPE_CHECKING:
    from queenmq.config import Settings

_MARKS: Final = {"good": ("✓", "green"), "doubtful": ("!", "yellow"), "bad": ("✗", "red"), "skipped": ("–", "dim")}
_NOT_SETTINGS: Final = frozenset({URL_VARIABLE, TOKEN_VARIABLE, "QUEEN_TRACEBACK"})


@command_of("doctor", "queen doctor", "DATABASE_URL=postgresql://queen@db/queen queen doctor --json")
@data_dir
@as_json
@server
def command(data_dir: Path | None, as_json: bool, server: str) -> int:
    """Check configuration, server, token, versions, clocks, peers, database, schema and lookup, and say what to do.

    The exit status is 1 if something is bad. The tables are checked if DATABASE_URL names the database, or the bundled
    one runs here.
    """
    findings = []
    for finding in _findings(data_dir, server):
        findings.append(finding)
        if not as_json:
            _show(finding)
    ill = [finding for finding in findings if finding.state == "bad"]
    doubts = [finding for finding in findings if finding.state == "doubtful"]
    if as_json:
        print_json({"healthy": not ill, "findings": [asdict(finding) for finding in findings]})
    elif ill or doubts:
        print(f"\n{plural(len(ill), 'problem')}, {plural(len(doubts), 'doubt')}.")
    else:
        print("\nAll is well.")
    return exits.FAILED if ill else exits.OK


def _show(finding: Finding) -> None:
    from rich.text import Text

    mark, colour = _MARKS[finding.state]
    line = Text.assemble((mark, colour), " ", (finding.name, "bold"), f": {finding.sentence}")
    if finding.advice:
        line.append(f"\n    → {finding.advice}")
    console().print(line)


def _findings(data_dir: Path | None, server: str) -> Iterator[Finding]:
    from queenmq import config
    from queenmq.cli.server_checks import check_server
    from queenmq.errors import StartupError

    settings: Settings | None = None
    try:
        settings = config.load(data_dir=data_dir)
    except StartupError as error:
        yield bad("configuration", error.message, "mend the variable; docs/configuration.md has them all")
    else:
        yield from _variables()
    for url in servers(server):
        yield from check_server(url)
    if settings is not None:
        from queenmq.cli.database_checks import check_database

        yield from check_database(settings)


def _variables() -> Iterator[Finding]:
    """Variables that look like ours and are not."""
    from queenmq.config import Settings

    known = {item.metadata["env"] for item in fields(Settings)} | _NOT_SETTINGS
    used = sorted(known & os.environ.keys())
    strange = sorted(name for name in os.environ if name.startswith("QUEEN_") and name not in known)
    for name in strange:
        near = get_close_matches(name, known, 1)
        meant = f"did you mean {near[0]}?" if near else "docs/configuration.md has them all"
        yield doubtful("configuration", f"{name} is no variable of Queen", meant)
    if not strange:
        yield good(
            "configuration", f"{', '.join(used)} can be used" if used else "nothing is set, so the defaults hold"
        )
