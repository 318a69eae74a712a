"""What a journal has set aside, as files: listed, read, handed back. Works beside a server that runs, and without one.

Nothing here writes to a journal. What is to be replayed is renamed into a folder from which the process that has the
journal takes it up by itself, within a second or when it starts; so nobody else ever needs its lock.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from queenmq.journal.folder import ASIDE, GIVEN_UP, RETRY, WHY, records_in
from queenmq.journal.interface import JournalledOperation
from queenmq.journal.push_records import Locked, Opened, RecordCodec


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that is not replayed; with `is_retried`, one that will be."""

    path: Path
    bytes: int
    at: datetime
    why: str
    is_retried: bool
    content: Opened | Locked | None  # None: it is damaged

    @property
    def name(self) -> str:
        return self.path.name


def set_aside_in(parent: Path, codec: RecordCodec) -> list[SetAside]:
    """The records of all journals in a folder, oldest first."""
    found = []
    for journal in journals_in(parent):
        for folder in (journal / ASIDE, journal / RETRY):
            for path in records_in(folder):
                # A server that runs may have taken it up meanwhile.
                with suppress(FileNotFoundError):
                    found.append(_described(path, journal, codec))
    return sorted(found, key=lambda one: one.at)


class QuarantineIndex:
    """Finds pushes in the quarantine by their operation ids. Each file is read once: its content never changes."""

    def __init__(self, parent: Path, codec: RecordCodec) -> None:
        self._parent = parent
        self._codec = codec
        self._known: dict[Path, JournalledOperation | None] = {}

    def find(self, operation_id: str) -> JournalledOperation | None:
        """Blocks while it reads files."""
        there = [path for journal in journals_in(self._parent) for path in records_in(journal / ASIDE)]
        self._known = {path: self._known[path] if path in self._known else self._read(path) for path in there}
        matching = (push for push in self._known.values() if push is not None and push.operation_id == operation_id)
        return next(matching, None)

    def _read(self, path: Path) -> JournalledOperation | None:
        """None if nothing can be read in it."""
        try:
            record = _described(path, path.parent.parent, self._codec)
        except FileNotFoundError:
            return None
        match record.content:
            case Opened(operation_id, messages):
                first = messages[0]
                return JournalledOperation(
                    operation_id, first.queue, first.partition, len(messages), record.why, record.at
                )
            case Locked(operation_id, _, count):
                return JournalledOperation(operation_id, "", "", count, record.why, record.at)
        return None


def _described(path: Path, journal: Path, codec: RecordCodec) -> SetAside:
    stored, stat = path.read_bytes(), path.stat()
    why = journal / ASIDE / (path.name + WHY)
    return SetAside(
        path,
        len(stored),
        datetime.fromtimestamp(stat.st_mtime, UTC),
        why.read_text() if why.exists() else "",
        path.parent.name == RETRY,
        read(stored, codec),
    )


def journals_in(parent: Path) -> list[Path]:
    """The folders of single journals."""
    if not parent.is_dir():
        return []
    return sorted((path for path in parent.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def read(stored: bytes, codec: RecordCodec) -> Opened | Locked | None:
    # Whatever is damaged was kept with the header of its record, and no kind of content begins like that.
    return codec.open(stored) if stored[:1] in (b"\0", b"\1", b"\2") else None


def retry(record: SetAside) -> None:
    """Have it replayed, behind everything that was journalled since."""
    folder = record.path.parent.parent / RETRY
    folder.mkdir(exist_ok=True, mode=0o700)
    with suppress(FileNotFoundError):
        record.path.rename(folder / record.name)


def give_up(parent: Path, what: str) -> None:
    """Have set aside what waits for the key with this fingerprint, or what fails again and again and has this id."""
    for journal in journals_in(parent):
        with (journal / GIVEN_UP).open("a") as file:
            file.write(what + "\n")
