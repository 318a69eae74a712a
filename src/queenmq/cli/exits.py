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
    OK: "the command succeeded",
    FAILED: "the command failed, the server refused it, or a check found a problem",
    USAGE: "the arguments are wrong, or the command needs a confirmation and there is no terminal (use `--yes`)",
    NOT_FOUND: "the queue, partition, group, message or operation does not exist",
    NOTHING_CAME: "`queen pop` got no message",
    NOT_ALLOWED: "the token is missing or not valid, or its role does not allow this",
    UNAVAILABLE: "no server answered, or it is overloaded; try again later",
    INTERRUPTED: "the command was interrupted with Ctrl-C",
    TERMINATED: "the command was ended by SIGTERM",
}


def plain(text: str) -> str:
    """The text with control characters escaped: names and errors may come from untrusted producers."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Failed(Exception):
    """An expected problem: one sentence on stderr and this status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
