"""The folder of the bundled PostgreSQL: where things lie in it, its lock, its credentials.

    <data>/queen.lock           flock, held by the server that uses the folder; contains its process id
    <data>/database.json        port, and user, password and database of the server; mode 0600
    <data>/administrator.json   user and password of the administrator, who is superuser; mode 0600
    <data>/postgres.log         what PostgreSQL says, bounded
    <data>/postgres/            PGDATA
    <data>/postgres/queen.conf  our settings, written anew at every start
    <data>/initdb-*/            a PGDATA in the making; renamed when complete, thrown away otherwise

Every failure of the file system becomes a StartupError that names the folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from queenmq.errors import StartupError

LOG_LIMIT_BYTES: Final = 16 * 1024 * 1024
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/queen")
    if base := os.environ.get("XDG_DATA_HOME"):
        return Path(base) / "queen"
    try:
        return Path.home() / ".local" / "share" / "queen"
    except RuntimeError:
        raise StartupError("this user has no home directory to keep data in; set QUEEN_DATA_DIR") from None


@contextmanager
def explained(root: Path) -> Iterator[None]:
    """Turn a failure of the file system into a sentence about the folder."""
    try:
        yield
    except OSError as error:
        raise StartupError(_sentence(root, error)) from error


def _sentence(root: Path, error: OSError) -> str:
    if error.errno in DISK_FULL:
        return disk_full(root)
    where = "" if error.filename in (None, str(root)) else f" ({error.filename})"
    return (
        f"the data folder {root} cannot be used: {error.strerror or error}{where}; choose another with QUEEN_DATA_DIR"
    )


def disk_full(root: Path) -> str:
    return f"the disk that holds the data folder {root} is full; free some space and start again"


# The administrator owns PostgreSQL and is superuser; the server is neither.
ADMINISTRATOR: Final = "queen"
SERVER: Final = "queen_server"


@dataclass(frozen=True)
class Credentials:
    port: int
    user: str
    password: str = field(repr=False)
    database: str

    def url(self) -> str:
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.database}"


class DataFolder:
    def __init__(self, root: Path) -> None:
        # The real path, because /proc names working directories by it.
        self.root = Path(os.path.realpath(root))
        self.pgdata = self.root / "postgres"
        self.config = self.pgdata / "queen.conf"
        self.log = self.root / "postgres.log"
        self._credentials = self.root / "database.json"
        self._administrator = self.root / "administrator.json"
        self._lock = self.root / "queen.lock"
        self._lock_fd: int | None = None

    def lock(self) -> None:
        """Make the folder and take it for this process, or say who has it."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StartupError(
                f"the data folder {self.root} is in use by another Queen (process {holder}); "
                "stop that one or choose another folder with QUEEN_DATA_DIR"
            ) from None
        self._lock_fd = descriptor
        self._adopt(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def make_scratch(self) -> Path:
        """A fresh folder to create data in, and a try to remove those of interrupted attempts.

        Each attempt has its own: the processes of the one before may still be writing.
        """
        for stale in self.root.glob("initdb-*"):
            shutil.rmtree(stale, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix="initdb-", dir=self.root))

    def credentials(self) -> Credentials:
        found = self._read(self._credentials)
        if found is None:
            raise _damaged(self._credentials)
        return found

    def has_credentials(self) -> bool:
        return self._credentials.exists()

    def drop_credentials(self) -> None:
        """Those of a database that is there no more."""
        self._credentials.unlink(missing_ok=True)

    def save_credentials(self, credentials: Credentials) -> None:
        self._write(self._credentials, json.dumps(asdict(credentials)) + "\n", 0o600)

    def administrator(self) -> Credentials | None:
        """Those of the administrator; None if somebody has taken the file away."""
        return self._read(self._administrator)

    def save_administrator(self, credentials: Credentials) -> None:
        self._write(self._administrator, json.dumps(asdict(credentials)) + "\n", 0o600)

    def _read(self, path: Path) -> Credentials | None:
        try:
            return Credentials(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise _damaged(path) from None

    def save_config(self, text: str) -> None:
        self._write(self.config, text, 0o644)
        (self.root / "postgresql.conf").unlink(missing_ok=True)  # where an older Queen wrote them

    def _write(self, path: Path, text: str, mode: int) -> None:
        """Replace a file as a whole: a crash or a full disk leaves the old one."""
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            os.fchmod(file.fileno(), mode)
            self._adopt(file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        self.sync()

    def _adopt(self, descriptor: int) -> None:
        """What root writes into the folder of somebody else must stay usable for them."""
        if os.geteuid() == 0:
            owner = self.root.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)

    def sync(self) -> None:
        """Make renames in the folder durable."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def open_log(self) -> int:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._adopt(descriptor)
        return descriptor

    def log_size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0

    def log_since(self, offset: int) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(offset)
            return file.read(LOG_LIMIT_BYTES).decode(errors="replace").splitlines()

    def bound_log(self) -> None:
        """Keep one old log. PostgreSQL appends to the open file, so it is emptied rather than renamed."""
        if self.log_size() > LOG_LIMIT_BYTES:
            with suppress(OSError):
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            with suppress(OSError):
                os.truncate(self.log, 0)

    def postmaster_pid(self) -> int | None:
        """The process id that PostgreSQL noted; it may be long gone."""
        try:
            # PostgreSQL in single-user mode notes its number negated.
            return abs(int((self.pgdata / "postmaster.pid").read_text().splitlines()[0]))
        except (FileNotFoundError, ValueError, IndexError):
            return None


def _damaged(path: Path) -> StartupError:
    return StartupError(
        f"{path} is missing or damaged, and with it a password of the bundled database; restore that file"
    )


def running_url(data_dir: Path, *, administrator: bool = False) -> str:
    """The connection URL of the bundled database that runs on this folder; StartupError if none does."""
    folder = DataFolder(data_dir)
    with explained(folder.root):
        pid = folder.postmaster_pid()
        if pid is None or not is_alive(pid):
            raise _not_running(folder)
        credentials = folder.credentials()
        if administrator:
            found = folder.administrator()
            if found is None:
                raise _damaged(folder.root / "administrator.json")
            credentials = replace(credentials, user=found.user, password=found.password)
    try:
        socket.create_connection(("127.0.0.1", credentials.port), timeout=5).close()
    except OSError:
        raise _not_running(folder) from None
    return credentials.url()


def _not_running(folder: DataFolder) -> StartupError:
    return StartupError(
        f"no bundled database runs on the data folder {folder.root}; start it with 'queen serve', name its folder with "
        "--data-dir or QUEEN_DATA_DIR, or another database with DATABASE_URL"
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
