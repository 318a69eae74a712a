"""The exit statuses of `queen`: what each means, and which one an error gets."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
NOTHING_CAME: Final = 4
NOT_ALLOWED: Final = 5
UNAVAILABLE: Final = 6
INTERRUPTED: Final = 130
TERMINATED: Final = 143

MEANINGS: Final = {
    OK: "done",
    FAILED: "it could not be done, was refused, or a check found something",
    USAGE: "wrong arguments, or a question that nobody was there to answer (`--yes`)",
    NOT_FOUND: "there is no such queue, partition, group, message or operation",
    NOTHING_CAME: "`queen pop` got no message",
    NOT_ALLOWED: "the token is missing, wrong, or its role is not enough",
    UNAVAILABLE: "no server could be reached, or it is overloaded: the same may work later",
    INTERRUPTED: "Ctrl-C",
    TERMINATED: "ended by SIGTERM",
}


def plain(text: str) -> str:
    """Text that does nothing to a terminal but appear in it: names and errors may come from anybody."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Failed(Exception):
    """An expected problem: one sentence on stderr and this status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
