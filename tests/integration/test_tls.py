"""HTTPS: the server's certificate, its change while connections are open, servers that show theirs, and bad files."""

from __future__ import annotations

import asyncio
import errno
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority, Files
from cluster.processes import QUEEN, ServeProcess, environment
from server_settings import settings_with

from integration.cluster import cluster
from integration.test_http_protocol import MB, Client, Gate, echo, on_both_loops, until
from queenmq.cli.serve import require_protection
from queenmq.client import Message, Queen
from queenmq.clock import ManualClock
from queenmq.config import TlsSettings
from queenmq.errors import StartupError
from queenmq.httpserver.front import HttpFront
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request, Response
from queenmq.server import Server
from queenmq.tls import Tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def serving(handler: Any, tls: Tls, **limits: Any) -> AsyncIterator[HttpFront]:
    chosen = Limits(**limits)
    front = HttpFront(handler, chosen, memory=HttpMemory.within(chosen, tls))
    await front.start("127.0.0.1", 0)
    try:
        yield front
    finally:
        await front.stop(0)


@asynccontextmanager
async def connected(front: HttpFront, context: ssl.SSLContext | None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*front.address, ssl=context)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def serial_of(client: Client) -> str:
    shown = client.writer.get_extra_info("peercert")
    return str(shown["serialNumber"])


# The server


@on_both_loops
async def test_requests_and_answers_of_every_size(authority: Authority) -> None:
    async def sizes(request: Request) -> Response:
        return Response(200, {"got": len(request.body), "filler": "x" * len(request.body)})

    async with (
        serving(sizes, Tls(*authority.sign(), None)) as front,
        connected(front, authority.trusting()) as client,
    ):
        for size in (0, 1, 100_000, 5 * MB):
            client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size, b"x" * size)
            assert (await client.answer()).json()["got"] == size
        # Pipelined, and sent in one packet.
        client.send(*[b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(50)])
        assert [(await client.answer()).status_code for _ in range(50)] == [200] * 50
        client.get("/", b"Connection: close")
        assert (await client.answer()).status_code == 200
        assert await client.rest() == b""


@on_both_loops
async def test_a_client_that_goes_ends_its_long_poll(authority: Authority) -> None:
    gate = Gate(hold=True)
    async with serving(gate, Tls(*authority.sign(), None)) as front:
        async with connected(front, authority.trusting()) as client:
            client.get("/")
            await gate.begun.wait()
            client.writer.close()
            await gate.cancelled.wait()
        await until(lambda: front.connections_open == 0)


@on_both_loops
async def test_what_is_refused_is_still_told(authority: Authority) -> None:
    async with (
        serving(echo, Tls(*authority.sign(), None), max_body_bytes=10) as front,
        connected(front, authority.trusting()) as client,
    ):
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n", b"x" * 11)
        answer = await client.answer()
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@on_both_loops
async def test_old_versions_and_plain_http_are_refused(authority: Authority) -> None:
    tls = Tls(*authority.sign(), None)
    assert tls.incoming.minimum_version == tls.outgoing.minimum_version == ssl.TLSVersion.TLSv1_2
    old = authority.trusting()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(echo, tls) as front:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with connected(front, old):
                pass
        async with connected(front, None) as plain:
            plain.get("/")
            answer = await plain.answer()
            assert (answer.status_code, answer.json()["code"]) == (400, "https_required")
        await until(lambda: tls.handshakes_failed == 2)
        assert len(front.crowd) == 0


@on_both_loops
async def test_a_changed_certificate_is_used_and_no_connection_ends(authority: Authority) -> None:
    tls = Tls(*authority.sign(), None)
    async with AsyncExitStack() as stack:
        front = await stack.enter_async_context(serving(echo, tls))
        first = await stack.enter_async_context(connected(front, authority.trusting()))
        first.get("/")
        await first.answer()
        authority.sign()
        front.sweep()  # it has changed, and may still be changing
        front.sweep()
        second = await stack.enter_async_context(connected(front, authority.trusting()))
        for client in (first, second):
            client.get("/")
            assert (await client.answer()).status_code == 200
        assert serial_of(first) != serial_of(second)
        assert (tls.reloads, front.connections_open) == (1, 2)


@on_both_loops
async def test_new_files_that_cannot_be_used_change_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.sign()
    tls = Tls(*files, None)
    async with serving(echo, tls) as front:
        for bad in (b"", b"nonsense"):
            files.certificate.write_bytes(bad)
            front.sweep()
            front.sweep()
            front.sweep()
            async with connected(front, authority.trusting()) as client:
                client.get("/")
                assert (await client.answer()).status_code == 200
        files.key.unlink()
        front.sweep()
        authority.sign()
        front.sweep()
        front.sweep()
        assert tls.reloads == 1
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2
    assert all("keeps the certificate that it has" in sentence for sentence in told)


async def test_files_that_could_not_be_read_are_read_when_they_can(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = Tls(*authority.sign(), None)
    key = authority.sign().key
    read_bytes = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path == key:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refused)
        for _ in range(5):
            tls.check()
    assert tls.reloads == 0
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1, "said once for the same files"
    tls.check()
    assert tls.reloads == 1


async def test_changed_permissions_are_noticed(authority: Authority) -> None:
    files = authority.sign()
    tls = Tls(*files, None)
    files.key.chmod(0o640)
    tls.check()
    tls.check()
    assert tls.reloads == 1


@on_both_loops
async def test_connections_without_a_handshake_make_room(authority: Authority) -> None:
    async with serving(echo, Tls(*authority.sign(), None), max_connections=3, max_per_address=3) as front:
        async with AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(connected(front, None)) for _ in range(3)]
            await until(lambda: len(front.crowd) == 3)
            for gone in silent:
                client = await stack.enter_async_context(connected(front, authority.trusting()))
                client.get("/")
                assert (await client.answer()).status_code == 200
                assert await gone.rest() == b""
        await until(lambda: len(front.crowd) == 0)
        assert not front.handshakes


@on_both_loops
async def test_making_room_loses_no_answer_that_is_under_way(authority: Authority) -> None:
    """The client has asked and does not read yet: what it is owed is still here when others need the room."""
    body = b"x" * (20 * MB)

    async def large(_: Request) -> Response:
        return Response(200, body=body, content_type=b"text/plain")

    tls = Tls(*authority.sign(), None)
    async with serving(large, tls, max_connections=1, max_per_address=1) as front, AsyncExitStack() as stack:
        slow = await stack.enter_async_context(connected(front, authority.trusting()))
        slow.get("/")
        await until(lambda: front.requests_total == 1)
        [connection] = front.connections
        connection._write_paused = False  # as if the answer were just short enough for the buffers
        assert connection.spare_rank == 3
        other = await stack.enter_async_context(connected(front, authority.trusting()))
        other.get("/")
        assert front.crowd.closed_for_room == 1
        assert len((await slow.answer()).content) == len(body)
        assert len((await other.answer()).content) == len(body)


async def test_an_end_that_is_near_is_told_once_a_day(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    tls = Tls(*authority.sign(days=13), None)
    tls._clock = clock
    for at in (0, 3600, 90_000, 14 * 86_400):
        clock.wall = lambda at=at: tls.expires_at - 13 * 86_400 + at  # type: ignore[method-assign, misc]
        tls.check()
    told = [record.getMessage() for record in caplog.records]
    assert ["expires at" in one for one in told] == [True, True, False]
    assert "expired at" in told[2]


# Files that cannot be used


def sentence_for(certificate: Path | None, key: Path | None, peer_ca: Path | None = None) -> str:
    with pytest.raises(StartupError) as caught:
        Tls.from_settings(TlsSettings(certificate=certificate, key=key, peer_ca=peer_ca))
    return caught.value.message


def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    files, other = authority.sign(), authority.sign("other")
    missing, nonsense = tmp_path / "missing", tmp_path / "nonsense"
    nonsense.write_text("no certificate")
    assert "cannot be read: No such file" in sentence_for(missing, files.key)
    assert "cannot be read: No such file" in sentence_for(files.certificate, missing)
    assert "has no certificate in PEM format" in sentence_for(nonsense, files.key)
    assert "the key must be in PEM" in sentence_for(files.certificate, nonsense)
    assert "does not belong to the certificate" in sentence_for(files.certificate, other.key)
    expired = authority.sign("expired", days=-1)
    assert "expired at" in sentence_for(*expired)
    hidden = authority.sign("hidden", passphrase=b"secret")
    assert "is protected by a passphrase" in sentence_for(*hidden)
    assert "QUEEN_TLS_KEY_FILE is not set" in sentence_for(files.certificate, None)
    assert "QUEEN_TLS_CERT_FILE is not set" in sentence_for(None, files.key)
    assert "has no certificate in PEM format" in sentence_for(*files, nonsense)
    assert "QUEEN_TLS_PEER_CA_FILE" in sentence_for(*files, missing)
    assert "but this one has none" in sentence_for(None, None, authority.file)
    assert Tls.from_settings(TlsSettings()) is None


def test_plain_http_outside_loopback_must_be_asked_for(authority: Authority) -> None:
    certificate, key = authority.sign()
    tokens = {"enabled": True, "secret": "s" * 32}
    outside = {"host": "0.0.0.0"}
    for tls in ({"certificate": certificate, "key": key}, {"allow_plain_http": True}):
        require_protection(settings_with(http=outside, auth=tokens, tls=tls))
        with pytest.raises(StartupError, match="QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true"):
            require_protection(settings_with(http=outside, tls=tls))
    require_protection(settings_with(http=outside, auth={"insecure": True}))
    require_protection(settings_with(auth=tokens))
    with pytest.raises(StartupError, match=r"QUEEN_TLS_CERT_FILE.*QUEEN_ALLOW_PLAIN_HTTP=true if a proxy"):
        require_protection(settings_with(http=outside, auth=tokens))
    with pytest.raises(StartupError, match="cannot be read"):
        require_protection(settings_with(tls={"certificate": certificate, "key": Path("/nowhere")}))


# Servers among each other


def over_tls(authority: Authority, files: Files, *, mutual: bool) -> dict[str, Any]:
    tls = {"certificate": files.certificate, "key": files.key, "peer_ca": authority.file if mutual else None}
    return {"tls": tls, "coordinator": {"timeout_ms": 60_000, "circuit_retry_ms": 600_000}}


@asynccontextmanager
async def clients_of(members: list[Any], authority: Authority) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for member in members:
            url = "https://{}:{}".format(*member.server.address)
            client = httpx.AsyncClient(base_url=url, verify=authority.trusting(), timeout=60)
            member.http = await stack.enter_async_context(client)
        yield


@pytest.mark.parametrize("mutual", [False, True])
async def test_servers_forward_over_tls(database_url: str, authority: Authority, mutual: bool) -> None:
    files = authority.sign()
    async with (
        cluster(database_url, "ab", **over_tls(authority, files, mutual=mutual)) as (a, b),
        clients_of([a, b], authority),
    ):
        a.send_consumers(("tls", "__QUEUE_MODE__"), b)
        assert (await a.push("tls", {"payload": 1})).status_code == 201
        poll = asyncio.create_task(a.pop("empty", wait=True, timeout=60_000, autoAck=True))
        for _ in range(3):
            await a.pop("tls")
        assert (await b.push("empty", {"payload": 2})).status_code == 201
        assert [message["data"] for message in (await poll).json()["messages"]] == [2]


async def test_a_server_without_a_certificate_is_not_greeted(database_url: str, authority: Authority) -> None:
    files = authority.sign()
    async with cluster(database_url, "ab", **over_tls(authority, files, mutual=True)) as (a, b):
        pool = a.server._forwarder._pool("b")
        assert pool is not None
        connection = await pool._connect(a.server.node._clock.monotonic() + 60)
        connection.abort()
        stranger = Authority(files.key.parent, "stranger")
        # Of another authority: TLS itself refuses it. Without any: the greeting does.
        a.server.front.tls.outgoing.load_cert_chain(*stranger.sign("forged"))
        with pytest.raises(Exception, match=r"TLS failed|connection was lost|reset"):
            await pool._connect(a.server.node._clock.monotonic() + 60)
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname = False
        bare.verify_mode = ssl.CERT_NONE
        a.server.front.tls.outgoing = bare
        with pytest.raises(Exception, match="has not proved to be that server"):
            await pool._connect(a.server.node._clock.monotonic() + 60)
        assert b.passed_on == 0


# Real processes


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_command_and_client_over_https(
    database_url: str, authority: Authority, tmp_path: Path, workers: str
) -> None:
    files = authority.sign()
    server = ServeProcess(
        tmp_path,
        "secure",
        DATABASE_URL=database_url,
        FILE_BUFFER_DIR=str(tmp_path / "journal"),
        QUEEN_TLS_CERT_FILE=str(files.certificate),
        QUEEN_TLS_KEY_FILE=str(files.key),
        QUEEN_TLS_PEER_CA_FILE=str(authority.file),
        NUM_WORKERS=workers,
        QUEEN_COORDINATOR_ENABLED=str(workers != "1").lower(),
        DB_POOL_SIZE="10",
    )

    def queen(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", QUEEN, *arguments]
        return subprocess.run(
            command, env=environment(QUEEN_URL=server.url, **variables), capture_output=True, text=True, check=False
        )

    try:
        await server.start()
        assert server.url.startswith("https://")
        run = await asyncio.to_thread(queen, "push", "secure", '{"n":1}')
        assert (run.returncode != 0, "certificate" in run.stderr) == (True, True)
        run = await asyncio.to_thread(queen, "push", "secure", '{"n":1}', "--cacert", str(authority.file))
        assert run.returncode == 0, run.stderr
        trusting = {"QUEEN_CA_FILE": str(authority.file)}
        run = await asyncio.to_thread(lambda: queen("queues", **trusting))
        assert run.returncode == 0, run.stderr
        run = await asyncio.to_thread(lambda: queen("doctor", "--json", DATABASE_URL=database_url, **trusting))
        assert f"Queen answers at {server.url}" in run.stdout
        run = await asyncio.to_thread(lambda: queen("queues", QUEEN_CA_FILE=str(files.key)))
        assert "has no certificate in PEM format" in run.stderr
        async with Queen(server.url, ssl_context=authority.trusting()) as client:
            messages = await client.queue("secure").pop()
            assert [message.data for message in messages] == [{"n": 1}]
            pushes = [client.queue("secure").partition(str(n)).push({"n": n}) for n in range(50)]
            assert all(result.stored for result in await asyncio.gather(*pushes))
        assert server.stop() == 0
        assert "Traceback" not in server.log
    finally:
        server.make_sure_it_is_gone()


def test_doctor_checks_the_files(authority: Authority, tmp_path: Path) -> None:
    files, other = authority.sign(), authority.sign("other")
    command = [sys.executable, "-c", QUEEN, "doctor", "--server", "http://127.0.0.1:1"]

    def doctor(key: Path) -> str:
        variables = {"QUEEN_TLS_CERT_FILE": str(files.certificate), "QUEEN_TLS_KEY_FILE": str(key), "COLUMNS": "500"}
        ran = subprocess.run(
            command,
            env=environment(QUEEN_DATA_DIR=str(tmp_path / "none"), **variables),
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stdout

    assert "HTTPS with the certificate in" in doctor(files.key)
    assert "it and its key can be used" in doctor(files.key)
    assert "does not belong to the certificate" in doctor(other.key)


async def test_a_consumer_connection(authority: Authority, database_url: str) -> None:
    files = authority.sign()
    running = Server(settings_with(tls={"certificate": files.certificate, "key": files.key}), database_url)
    await running.start()
    try:
        host, port = running.address
        async with Queen(f"https://{host}:{port}", ssl_context=authority.trusting()) as queen:
            await queen.queue("q").push(["x" * 100_000, 2])
            seen: list[Any] = []
            done = asyncio.Event()

            def handle(message: Message) -> None:
                seen.append(message.data)
                if len(seen) == 2:
                    done.set()

            async with asyncio.timeout(30):
                await queen.queue("q").connection(True).consume(handle, signal=done)
            assert seen == ["x" * 100_000, 2]
    finally:
        await running.stop()
