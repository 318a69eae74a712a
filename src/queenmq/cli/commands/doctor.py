"""`queen doctor`: check the installation and say how to repair it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from queenmq.cli import exits, extras
from queenmq.cli.arguments import as_json, data_dir
from queenmq.cli.finding import Finding, bad, doubtful, good, skipped
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import server, servers
from queenmq.cli.show import console, plural, print_json

if TYPE_CHECKING:
    from queenmq.config import Settings

_MARKS: Final = {"good": ("✓", "green"), "doubtful": ("!", "yellow"), "bad": ("✗", "red"), "skipped": ("–", "dim")}


@command_of("doctor", "queen doctor", "DATABASE_URL=postgresql://queen@db/queen queen doctor --json")
@data_dir
@as_json
@server
def command(data_dir: Path | None, as_json: bool, server: str) -> int:
    """Check configuration, server, token, versions, clocks, peers, database, schema and lookup, and say what to do.

    The exit status is 1 if there is a problem. The tables are checked if DATABASE_URL names the database, or the
    bundled one runs on this machine.
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
        print(f"\n{plural(len(ill), 'problem')}, {plural(len(doubts), 'warning')}.")
    else:
        print("\nNo problems found.")
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
    from queenmq.cli.effective import doubts_about_tokens, in_effect
    from queenmq.cli.server_checks import check_server
    from queenmq.errors import StartupError

    settings: Settings | None = None
    try:
        settings = config.load(flags={"QUEEN_DATA_DIR": data_dir})
    except StartupError as error:
        yield bad("configuration", error.message, "correct the variable; docs/configuration.md lists all of them")
    else:
        yield from _variables()
        yield good("effective", f"a server with these variables has {', '.join(in_effect(settings))}")
        for sentence in doubts_about_tokens(settings):
            what, advice = sentence.split(": ", 1)
            yield doubtful("tokens", what, advice)
        yield from _certificate(settings)
    for url in servers(server):
        yield from check_server(url)
    if settings is not None:
        yield from _database(settings)


def _certificate(settings: Settings) -> Iterator[Finding]:
    """Whether a server with these variables could use its TLS files."""
    if settings.tls.certificate is None:
        return
    from datetime import UTC, datetime

    from queenmq.clock import SYSTEM
    from queenmq.errors import StartupError
    from queenmq.tls import EXPIRES_SOON_S, Tls

    try:
        tls = Tls.from_settings(settings.tls)
    except StartupError as error:
        yield bad("certificate", error.message, "correct the files or the variables; a server does not start so")
        return
    if tls is None:
        return
    until = datetime.fromtimestamp(tls.expires_at, UTC).isoformat(timespec="minutes")
    if tls.expires_at - SYSTEM.wall() < EXPIRES_SOON_S:
        yield doubtful("certificate", f"it expires at {until}", "put a new one into its files; servers read them again")
    else:
        yield good("certificate", f"it and its key can be used; it expires at {until}")


def _database(settings: Settings) -> Iterator[Finding]:
    try:
        from queenmq.cli.database_checks import check_database
    except ModuleNotFoundError as error:
        if (found := extras.server_missing(error)) is None:
            raise
        why, advice = found
        yield skipped("database", f"not checked, because {why}", advice)
    else:
        yield from check_database(settings)


def _variables() -> Iterator[Finding]:
    """Variables with a prefix of Queen that Queen does not know."""
    from queenmq.config import NOT_SETTINGS, WITHOUT_EFFECT, declared, unknown_variables

    known = {item.metadata["env"] for item in declared()} | NOT_SETTINGS
    used = sorted(known & os.environ.keys())
    strange = unknown_variables()
    for name, advice in strange.items():
        what = "has no effect" if name in WITHOUT_EFFECT else "is not a variable of Queen"
        yield doubtful("configuration", f"{name} {what}", advice)
    if not strange:
        yield good("configuration", f"valid: {', '.join(used)}" if used else "no variable is set; the defaults apply")
