"""The command `queen` as people run it: real processes, real signals, real folders."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from ports import free_port

import queenmq
from queenmq.cli.main import main
from queenmq.storage import postmaster
from queenmq.storage.datafolder import DataFolder

PATIENCE_S = 90.0
POLL_S = 0.05

QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"

# A server that only says what is done with it. Its stop waits for a file, so that signals can meet it there.
STAND_IN = """
import asyncio, os, sys, types
from pathlib import Path
from queenmq.errors import StartupError

class Server:
    def __init__(self, settings, dsn):
        self.address = (settings.http.host, settings.http.port)
    async def start(self):
        if os.environ.get("STAND_IN_FAILS"):
            raise StartupError("the schema is newer than this server")
        print("server started", file=sys.stderr, flush=True)
    async def stop(self):
        print("server stopping", file=sys.stderr, flush=True)
        gate = os.environ.get("STAND_IN_GATE")
        while gate and not Path(gate).exists():
            await asyncio.sleep(0.02)
        print("server stopped", file=sys.stderr, flush=True)

server = types.ModuleType("queenmq.server")
server.Server = Server
sys.modules["queenmq.server"] = server
database = types.ModuleType("queenmq.storage.database")
database.dsn = lambda database: database.url
sys.modules["queenmq.storage.database"] = database

if os.environ.get("INITDB_HANGS"):
    from queenmq.storage import embedded
    embedded._initdb_command = lambda target, secret: ["sh", "-c", 'mkdir "$0" && exec sleep 600', str(target)]
"""


@dataclass
class Command:
    """One run of `queen`, with what it printed so far in two files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def stdout(self) -> str:
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        return self.err.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something to become true while the command runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"it ended:\n{self.stdout}\n{self.stderr}"
            assert time.monotonic() < deadline, f"waited in vain:\n{self.stdout}\n{self.stderr}"
            time.sleep(POLL_S)

    def until_up(self) -> str:
        """Wait for the announcement and answer the base URL in it."""
        self.until(lambda: "Ctrl-C stops" in self.stdout)
        found = re.search(r"listens on (http://\S+)", self.stdout)
        assert found
        return found[1]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def environment(data: Path, **more: str) -> dict[str, str]:
    ours = {"QUEEN_DATA_DIR": str(data), "PORT": str(free_port()), "PYTHONUNBUFFERED": "1"}
    inherited = {name: value for name, value in os.environ.items() if name not in ("HOST", "PG_HOST", "DATABASE_URL")}
    return {**inherited, **ours, **more}


@contextlib.contextmanager
def queen(
    data: Path,
    *arguments: str,
    code: str = QUEEN,
    stdout: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Command]:
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdout=out_file if stdout is None else stdout,
                stderr=err_file,
                env=environment(data, **(variables or {})),
            )
        try:
            yield Command(process, out, err)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


def stand_in(data: Path, *arguments: str, **more: str) -> contextlib.AbstractContextManager[Command]:
    return queen(data, "serve", *arguments, code=STAND_IN + QUEEN, variables=more)


def refused(data: Path, *arguments: str, code: str = STAND_IN + QUEEN, **more: str) -> str:
    """The one sentence with which a start is refused."""
    with queen(data, *(arguments or ("serve",)), code=code, variables=more) as command:
        assert command.process.wait(PATIENCE_S) == 1
        assert command.stdout == ""
        sentence = command.stderr.splitlines()[-1]
        assert "Traceback" not in command.stderr
        assert sentence.startswith("queen: ")
        return sentence


DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(url: str, body: object = None) -> tuple[int, object]:
    payload = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, payload, {"Content-Type": "application/json"})
    with DIRECTLY.open(request, timeout=PATIENCE_S) as answer:
        text = answer.read()
        return answer.status, json.loads(text) if text else None


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def nothing_runs_on(data: Path) -> bool:
    return not postmaster.living(data / "postgres")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"queen {queenmq.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["serve", "--port", "70000"], ["serve", "--port", "x"], ["db"], ["brew"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: queen" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_server_then_database(data: Path, number: signal.Signals) -> None:
    with stand_in(data) as command:
        command.until_up()
        assert command.end(number) == 0
        assert command.stderr.index("server stopped") > command.stderr.index("server stopping")
        assert "Traceback" not in command.stderr
    assert nothing_runs_on(data)
    assert "database system is shut down" in (data / "postgres.log").read_text().splitlines()[-1]


def test_announcement(data: Path) -> None:
    with stand_in(data) as command:
        base = command.until_up()
        assert str(data) in command.stdout
        assert f"{base}/api/v1/push" in command.stdout
        assert f"{base}/api/v1/pop/queue/" in command.stdout
        assert DataFolder(data).credentials().password not in command.stdout + command.stderr


def test_a_server_with_tokens_says_how_the_first_one_is_made(data: Path) -> None:
    with stand_in(data, QUEEN_TOKENS_ENABLED="true") as command:
        command.until_up()
        assert f"queen token create root --role admin --in-database --data-dir {data}\n" in command.stdout


def test_the_start_says_what_is_in_effect_and_warns_of_names_that_are_none(data: Path) -> None:
    with stand_in(data, JWT_SECRET="hush" * 8, JWT_ENABELD="true", SIDECAR_POOL_SIZE="50") as command:
        command.until_up()
        assert (
            "In effect: authentication off, plain HTTP, the bundled PostgreSQL, no encryption key, no peers"
            in command.stdout
        )
        assert "JWT_ENABELD is not a variable of Queen and has no effect; did you mean JWT_ENABLED?" in command.stderr
        assert "JWT_ENABLED is not true: the server requires no token" in command.stderr
        assert "SIDECAR_POOL_SIZE has no effect: all calls share the connections of DB_POOL_SIZE" in command.stderr
        assert "hush" not in command.stdout + command.stderr


def test_a_word_that_is_no_flag_stops_the_start(data: Path) -> None:
    for variable in ("JWT_ENABLED", "PG_USE_SSL", "PG_SSL_REJECT_UNAUTHORIZED", "QUEEN_SYNC_ENABLED"):
        sentence = refused(data, **{variable: "ture"})
        assert sentence.startswith(f"queen: {variable} cannot be used: 'ture' must be true or false")


def test_database_stays_up_while_the_server_stops_and_further_signals_change_nothing(
    data: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with stand_in(data, STAND_IN_GATE=str(gate)) as command:
        command.until_up()
        command.process.send_signal(signal.SIGINT)
        command.until(lambda: "server stopping" in command.stderr)
        command.process.send_signal(signal.SIGINT)
        command.until(lambda: command.stderr.count("already stopping") == 1)
        command.process.send_signal(signal.SIGTERM)
        command.until(lambda: command.stderr.count("already stopping") == 2)
        assert not nothing_runs_on(data)
        gate.touch()
        assert command.process.wait(PATIENCE_S) == 0
    assert nothing_runs_on(data)


def test_signal_while_the_database_is_being_created(data: Path) -> None:
    with stand_in(data, INITDB_HANGS="1") as command:
        command.until(lambda: list(data.glob("initdb-*/data")))
        assert command.end(signal.SIGINT) == 0
        assert "Traceback" not in command.stderr
        assert command.stdout == ""
    with stand_in(data) as command:
        command.until_up()


def test_server_that_cannot_start_takes_the_database_down(data: Path) -> None:
    assert refused(data, STAND_IN_FAILS="1") == "queen: the schema is newer than this server"
    assert nothing_runs_on(data)


def test_taken_port_is_noticed_before_the_database_starts(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sentence = refused(data, PORT=str(port))
    assert f"127.0.0.1:{port}" in sentence
    assert "in use" in sentence
    assert not data.exists()


def test_second_start_on_the_same_folder(data: Path) -> None:
    with stand_in(data) as first:
        first.until_up()
        sentence = refused(data)
        assert str(data) in sentence
        assert str(first.process.pid) in sentence


def test_unusable_variable(data: Path) -> None:
    assert "PORT" in refused(data, PORT="many")


def test_unknown_host(data: Path) -> None:
    assert "HOST" in refused(data, HOST="no such host")
    assert "192.0.2.1" in refused(data, HOST="192.0.2.1", QUEEN_INSECURE="true")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_open_host_needs_tokens(data: Path, host: str) -> None:
    sentence = refused(data, HOST=host)
    assert "set QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true" in sentence
    assert "QUEEN_INSECURE" in sentence
    assert not data.exists()


def test_open_host_with_consent(data: Path) -> None:
    with stand_in(data, "--host", "0.0.0.0", QUEEN_INSECURE="true") as command:
        assert command.until_up().startswith("http://0.0.0.0:")
        assert "curl http://127.0.0.1:" in command.stdout


def test_flags_win_over_the_environment(data: Path, tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "other"
    with stand_in(data, "--port", str(port), "--data-dir", str(folder), "--log-level", "error") as command:
        assert command.until_up() == f"http://127.0.0.1:{port}"
        assert folder.exists()
        assert not data.exists()
        assert "INFO" not in command.stderr


def test_existing_database_is_named_without_its_password(data: Path) -> None:
    url = "postgresql://me:hush@db.example:5433/app?password=hush"
    with stand_in(data, DATABASE_URL=url) as command:
        command.until_up()
        assert "db.example:5433/app" in command.stdout
        assert "hush" not in command.stdout + command.stderr
        assert not (data / "postgres").exists()


def test_closed_pipe_on_stdout(data: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with queen(data, "serve", code=STAND_IN + QUEEN, stdout=writer) as command:
            command.until(lambda: "server started" in command.stderr)
            assert command.end() == 0
            assert "Error" not in command.stderr
    finally:
        os.close(writer)


def test_closed_stdout(data: Path) -> None:
    shut = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', sys.argv[1], *sys.argv[2:]])"
    with queen(data, STAND_IN + QUEEN, "serve", code="import os; os.close(1)\n" + shut) as command:
        command.until(lambda: "server started" in command.stderr)
        assert command.end() == 0
        assert "Error" not in command.stderr


def test_db_url(data: Path) -> None:
    assert str(data) in refused(data, "db", "url", code=QUEEN)
    with stand_in(data) as command:
        command.until_up()
        with queen(data, "db", "url") as asking:
            assert asking.process.wait(PATIENCE_S) == 0
            assert asking.stdout == DataFolder(data).credentials().url() + "\n"


def test_push_and_pop_through_the_real_server_across_kill(data: Path) -> None:
    with queen(data, "serve") as command:
        base = command.until_up()
        item = {"queue": "hello", "payload": {"text": "world"}}
        status, _ = call(f"{base}/api/v1/push", {"items": [item]})
        assert status == 201
        assert command.end(signal.SIGKILL) == -signal.SIGKILL
    with queen(data, "serve") as command:
        base = command.until_up()
        _, answer = call(f"{base}/api/v1/pop/queue/hello?autoAck=true")
        assert isinstance(answer, dict)
        assert [message["data"] for message in answer["messages"]] == [{"text": "world"}]
        assert command.end() == 0
        assert "Traceback" not in command.stderr
    assert nothing_runs_on(data)


def test_real_server_survives_the_death_of_its_database(data: Path) -> None:
    with queen(data, "serve") as command:
        base = command.until_up()
        pid = DataFolder(data).postmaster_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        def pushed() -> bool:
            with contextlib.suppress(urllib.error.URLError, OSError):
                return call(f"{base}/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})[0] == 201
            return False

        command.until(lambda: DataFolder(data).postmaster_pid() not in (None, pid))
        command.until(pushed)


def test_real_server_refuses_a_newer_schema(data: Path) -> None:
    with queen(data, "serve") as command:
        command.until_up()
        statement = "INSERT INTO queen.schema_migrations (version, name) VALUES (9999, 'from the future')"
        asyncio.run(execute(DataFolder(data).credentials().url(), statement))
        assert command.end() == 0
    assert "9999" in refused(data, code=QUEEN)
    assert nothing_runs_on(data)


def test_real_server_starts_without_its_existing_database(data: Path) -> None:
    url = f"postgresql://me:hush@127.0.0.1:{free_port()}/app"
    with queen(data, "serve", variables={"DATABASE_URL": url}) as command:
        command.until_up()
        assert command.end() == 0
        assert "cannot connect to PostgreSQL" in command.stderr
        assert "hush" not in command.stderr


def test_two_real_servers_share_the_bundled_database(data: Path, tmp_path: Path) -> None:
    with queen(data, "serve") as first:
        base = first.until_up()
        url = DataFolder(data).credentials().url()
        with queen(tmp_path / "unused", "serve", variables={"DATABASE_URL": url}) as second:
            other = second.until_up()
            call(f"{base}/api/v1/push", {"items": [{"queue": "shared", "payload": 1}]})
            _, answer = call(f"{other}/api/v1/pop/queue/shared?autoAck=true")
            assert isinstance(answer, dict)
            assert len(answer["messages"]) == 1
            assert url not in second.stdout + second.stderr


def test_each_database_has_a_journal_of_its_own(data: Path) -> None:
    """What was accepted for one must not be replayed into another."""
    folders = []
    for name in ("one", "other"):
        url = f"postgresql://me:hush@127.0.0.1:{free_port()}/{name}"
        with queen(data, "serve", variables={"DATABASE_URL": url}) as command:
            command.until_up()
            folders.append({folder.name for folder in (data / "journal").iterdir()})
            assert command.end() == 0
    assert len(folders[0]) == 1
    assert len(folders[1]) == 2
