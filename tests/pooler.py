"""PgBouncer in transaction mode, in front of the PostgreSQL of the tests.

With QUEEN_TEST_POOLER=1 every server in the process of the tests reaches its database through it, while what the tests
themselves do goes to PostgreSQL directly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ports import free_port

from queenmq.storage import launcher

IS_ASKED_FOR = os.environ.get("QUEEN_TEST_POOLER") == "1"
PATIENCE_S = 30
active: Pooler | None = None
# Few sessions for many connections: two transactions of a server rarely get the same one.
CONFIG = """\
[databases]
* = host=127.0.0.1 port={target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 2000
server_idle_timeout = 5
server_round_robin = 1
"""


def _program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def is_missing() -> bool:
    """Whether tests that need it are left out. Fails where QUEEN_REQUIRE_POOLER demands it."""
    if _program() is not None:
        return False
    assert os.environ.get("QUEEN_REQUIRE_POOLER") != "1", "there is no pgbouncer, and QUEEN_REQUIRE_POOLER demands one"
    return True


needs_pooler = pytest.mark.skipif("pooler.is_missing()", reason="there is no pgbouncer (apt install pgbouncer)")


def through(url: str) -> str:
    """The same database as the servers of this run reach it."""
    return url if active is None else active.url(url)


class Pooler:
    """A running PgBouncer."""

    def __init__(self, program: str, target: str, folder: Path) -> None:
        parts = urlsplit(target)
        self.port = free_port()
        self._target = f"{parts.hostname}:{parts.port}"
        self._command = [program, str(folder / "pgbouncer.ini")]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, url: str) -> str:
        """The same database through the pooler, if it is the PostgreSQL behind it."""
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}@127.0.0.1:{self.port}").geturl() if host == self._target else url

    def start(self) -> None:
        # It refuses to run as root.
        user = launcher.database_user(Path("/nowhere")) if os.geteuid() == 0 else (None, None)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                user=user[0],
                group=user[1],
                extra_groups=None if user[0] is None else [],
            )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)
        raise AssertionError(f"pgbouncer did not start: {(self._folder / 'log').read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """As after a crash: its connections are cut on both sides."""
        self.stop()
        self.start()


@contextlib.contextmanager
def pooled(target: str, sessions: int = 10) -> Iterator[Pooler]:
    """PgBouncer in front of the PostgreSQL of that URL, whose user it lets in."""
    parts = urlsplit(target)
    program = _program()
    assert program is not None, "there is no pgbouncer"
    folder = Path(tempfile.mkdtemp(prefix="queen-pgbouncer-"))
    running = Pooler(program, target, folder)
    (folder / "users").write_text(f'"{parts.username}" "{parts.password}"\n')
    config = CONFIG.format(target=parts.port, port=running.port, folder=folder, sessions=sessions)
    (folder / "pgbouncer.ini").write_text(config)
    for path in (folder, *folder.iterdir()):
        launcher.give(path, launcher.database_user(Path("/nowhere")))
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)
