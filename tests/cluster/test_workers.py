"""`queen serve --workers 2`: two processes on one port that need no configuration to act as one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest
from integration.proxy import Proxy, relayed
from integration.queen import data, until
from ports import free_port, free_udp_port

from cluster.processes import SECRET, Remote, ServeProcess
from queenmq.cluster.affinity import rank
from queenmq.core.names import QUEUE_MODE

AT_ONCE_S = 2.0
POOL_SIZE = 4
CONNECTIONS = 60  # enough that the system deals some to each worker
# It is never given up while it is idle: the next one may reach the other worker.
ONE_CONNECTION = httpx.Limits(max_connections=1, keepalive_expiry=None)


class Pair:
    """The two workers, each over a connection that reached it."""

    def __init__(self, serve: ServeProcess) -> None:
        self.serve = serve
        self.clients: dict[str, Remote] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Pair:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def reach(self) -> list[Remote]:
        """A client of each worker, when both are members of each other."""
        await until(self._both, 20)
        first, second = (self.clients[name] for name in sorted(self.clients))
        for remote in (first, second):
            await until(lambda remote=remote: _others(remote, 1))
        return [first, second]

    async def _both(self) -> bool:
        """Connect until each worker has been met; a connection stays with the worker that accepted it."""
        for _ in range(CONNECTIONS):
            http = httpx.AsyncClient(base_url=self.serve.url, timeout=30, limits=ONE_CONNECTION)
            try:
                name = (await Remote(http).figures())["server_id"]
            except httpx.HTTPError:
                await http.aclose()
                continue
            if name in self.clients:
                await http.aclose()
                continue
            self._stack.push_async_callback(http.aclose)
            self.clients[name] = Remote(http)
            if len(self.clients) == 2:
                return True
        return False

    async def enter(self, http: httpx.AsyncClient) -> httpx.AsyncClient:
        return await self._stack.enter_async_context(http)

    async def forget(self) -> None:
        await self._stack.aclose()
        self._stack = contextlib.AsyncExitStack()
        self.clients.clear()


async def _others(remote: Remote, count: int) -> bool:
    return await remote.alive() == count


def workers_of(serve: ServeProcess) -> list[psutil.Process]:
    return [p for p in psutil.Process(serve.pid).children() if "queenmq.cli.workers" in p.cmdline()]


@pytest.fixture
async def serve(database_url: str, tmp_path: Path) -> AsyncIterator[ServeProcess]:
    process = ServeProcess(
        tmp_path,
        "pair",
        "--workers",
        "2",
        DATABASE_URL=database_url,
        DB_POOL_SIZE=str(POOL_SIZE),
        POP_WAIT_INITIAL_INTERVAL_MS="60000",
        POP_WAIT_MAX_INTERVAL_MS="60000",
    )
    try:
        await process.start()
        yield process
    finally:
        process.make_sure_it_is_gone()


async def test_both_serve_and_wake_each_other(serve: ServeProcess) -> None:
    async with Pair(serve) as pair:
        one, two = await pair.reach()
        assert sorted(pair.clients) == ["pair#0", "pair#1"]
        await one.queen.configure("q")
        await one.queen.pop("q")
        for waiter, pusher in ((one, two), (two, one)):
            poll = asyncio.ensure_future(waiter.queen.wait("q", autoAck=True))
            name = next(name for name, remote in pair.clients.items() if remote is waiter)
            await until(lambda pusher=pusher: _tracks_consumers(pusher))
            await pusher.queen.push("q", name)
            async with asyncio.timeout(AT_ONCE_S):
                assert data(await poll) == [name]
            await until(lambda pusher=pusher: _tracks_nobody(pusher))
    assert serve.stop() == 0


async def test_a_request_is_passed_on_to_the_very_worker_that_is_meant(database_url: str, tmp_path: Path) -> None:
    """They share a port, so each has one of its own for the other."""
    serve = ServeProcess(
        tmp_path,
        "pair",
        "--workers",
        "2",
        DATABASE_URL=database_url,
        DB_POOL_SIZE=str(POOL_SIZE),
        QUEEN_COORDINATOR_ENABLED="true",
        QUEEN_COORDINATOR_FORWARD_THRESHOLD="1",
    )
    try:
        await serve.start()
        async with Pair(serve) as pair:
            one, two = await pair.reach()
            await until(lambda: _reached_by_own_ports(one, serve.url), 30)
            for waiter, pusher, served_by in ((two, one, "pair#1"), (one, two, "pair#0")):
                queue = _queue_served_by(served_by, "pair#0", "pair#1")
                poll = asyncio.ensure_future(waiter.queen.wait(queue, "quiet", timeout=60_000))
                await until(lambda pusher=pusher, name=served_by, queue=queue: _is_passed_on(pusher, queue, name), 90)
                for _ in range(5):
                    assert await _is_passed_on(pusher, queue, served_by)
                await pusher.queen.push(queue, served_by, partition="quiet")
                assert data(await poll) == [served_by]
        assert await asyncio.to_thread(serve.stop) == 0
        assert "Traceback" not in serve.log
    finally:
        serve.make_sure_it_is_gone()


async def _reached_by_own_ports(remote: Remote, shared: str) -> bool:
    """Whether each worker is known by an address at which, of many connections, all reach that worker."""
    servers = (await remote.http.get("/api/v1/cluster/balance")).json()["servers"]
    if len(servers) < 2 or not all(server["healthy"] for server in servers):
        return False
    assert len({shared, *(server["url"] for server in servers)}) == 3
    for server in servers:
        for _ in range(10):
            async with httpx.AsyncClient(base_url=server["url"], timeout=30) as http:
                assert (await Remote(http).figures())["server_id"] == server["server_id"]
    return True


def _queue_served_by(server: str, *servers: str) -> str:
    """A queue, the consumers of whose partition `quiet` all servers send to this one."""
    names = (f"q{number}" for number in range(100))
    return next(
        name for name in names if max(servers, key=lambda one: rank((name, "quiet", QUEUE_MODE), one)) == server
    )


async def _is_passed_on(remote: Remote, queue: str, server: str) -> bool:
    """Whether a push to the queue of that server's consumer is served there."""
    answer = await remote.http.post("/api/v1/push", json={"items": [{"queue": queue, "payload": 1}]})
    assert answer.status_code == 201, answer.text
    return answer.headers["x-served-by"] == server and "x-forwarded-by" in answer.headers


async def _tracks_consumers(remote: Remote) -> bool:
    figures = (await remote.figures())["consumer_presence"]
    return bool(figures["queues_tracked"] == 1 and figures["entries"] == 1)


async def _tracks_nobody(remote: Remote) -> bool:
    before = (await remote.figures())["consumer_presence"]
    await remote.http.post("/internal/api/notify", json={"queue": "q"})
    after = (await remote.figures())["consumer_presence"]
    return bool(after["notifications_saved"] > before["notifications_saved"])


async def test_the_connections_to_the_database_are_shared(serve: ServeProcess, sql: asyncpg.Connection) -> None:
    async with Pair(serve) as pair, asyncio.TaskGroup() as tasks:
        for remote in await pair.reach():
            http = await pair.enter(httpx.AsyncClient(base_url=remote.http.base_url, timeout=30))
            for number in range(CONNECTIONS):
                body = {"operations": [{"type": "push", "items": [{"queue": f"q{number}", "payload": number}]}]}
                tasks.create_task(http.post("/api/v1/transaction", json=body))
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'queen'"
    assert 2 < await sql.fetchval(count) <= POOL_SIZE


async def test_a_killed_worker_is_started_again_and_service_goes_on(serve: ServeProcess) -> None:
    async with Pair(serve) as pair:
        await pair.reach()
        victim, survivor = workers_of(serve)
        victim.kill()
        await until(lambda: _pushed(serve.url))
        await until(lambda: len(workers_of(serve)) == 2)
        await pair.forget()
        one, two = await pair.reach()
        await one.queen.push("q", "after")
        assert "after" in data(await two.queen.drain("q"))
        assert survivor.is_running()
        assert victim.pid not in [worker.pid for worker in workers_of(serve)]
        assert "ended with status -9; it is started again" in serve.log


async def _pushed(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=5) as http:
        try:
            body = {"items": [{"queue": "q", "payload": "meanwhile"}]}
            return (await http.post("/api/v1/push", json=body)).status_code == 201
        except httpx.HTTPError:
            return False


async def test_the_workers_end_when_their_parent_is_killed(serve: ServeProcess) -> None:
    workers = workers_of(serve)
    assert len(workers) == 2
    serve.kill()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, workers, 15)
    for worker in alive:
        worker.kill()
    assert not alive
    assert len(gone) == 2
    with socket.socket() as probe:
        port = int(serve.url.rpartition(":")[2])
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


async def test_what_the_workers_of_a_killed_parent_have_journalled_is_stored_by_the_next_ones(
    database_url: str, tmp_path: Path, sql: asyncpg.Connection
) -> None:
    """They finish their requests before they end, and have the journal until then."""
    process = ServeProcess(
        tmp_path,
        "pair",
        "--workers",
        "2",
        DATABASE_URL=database_url,
        PORT=str(free_port()),
        FILE_BUFFER_DIR=str(tmp_path / "journal"),
        DB_LOCK_TIMEOUT="60000",
        QUEEN_SHUTDOWN_GRACE_S="60",
    )
    try:
        await process.start()
        async with httpx.AsyncClient(base_url=process.url, timeout=90) as http, asyncio.TaskGroup() as tasks:
            await http.post("/api/v1/system/maintenance", json={"enabled": True})
            for number in range(3):
                item = {"queue": "q", "payload": number, "transactionId": str(number)}
                assert (await http.post("/api/v1/push", json={"items": [item]})).status_code == 202
            workers = workers_of(process)
            async with sql.transaction():
                await sql.execute("LOCK TABLE queen.dead_letter_queue")
                for _ in range(CONNECTIONS):
                    tasks.create_task(_lost(http.get("/api/v1/dlq")))
                for worker in workers:
                    await until(lambda worker=worker: _waits_for_the_database(worker, sql), 30)
                process.kill()
                await until(lambda: not any(_listens(worker) for worker in workers), 30)
                process.launch()
                await until(lambda: "waiting for the workers" in process.log or process.is_up, 30)
            await asyncio.to_thread(process.until_up)
            _, alive = await asyncio.to_thread(psutil.wait_procs, workers, 30)
            assert not alive
        async with httpx.AsyncClient(base_url=process.url, timeout=30) as http:
            await http.post("/api/v1/system/maintenance", json={"enabled": False})
            stored = "SELECT count(*) FROM queen.messages WHERE transaction_id IN ('0', '1', '2')"
            await until(lambda: _is(sql, stored, 3), 10)
        assert process.stop() == 0
    finally:
        process.make_sure_it_is_gone()


async def _lost(asking: Awaitable[object]) -> None:
    with contextlib.suppress(httpx.HTTPError):
        await asking


async def _is(sql: asyncpg.Connection, query: str, expected: int) -> bool:
    return bool(await sql.fetchval(query) == expected)


async def _waits_for_the_database(worker: psutil.Process, sql: asyncpg.Connection) -> bool:
    """Whether a statement of that process waits for a lock."""
    await sql.execute("SELECT pg_stat_clear_snapshot()")
    waiting = await sql.fetch("SELECT client_port FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    own = {one.laddr.port for one in worker.net_connections("tcp")}
    return not own.isdisjoint(row["client_port"] for row in waiting)


def _listens(worker: psutil.Process) -> bool:
    try:
        return any(one.status == psutil.CONN_LISTEN for one in worker.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return False


async def test_a_signal_stops_everything_of_the_bundled_database_too(tmp_path: Path) -> None:
    process = ServeProcess(tmp_path, "bundled", "--workers", "2", QUEEN_DATA_DIR=str(tmp_path / "data"))
    try:
        await process.start()
        everything = psutil.Process(process.pid).children(recursive=True)
        assert len(everything) > 3, "two workers and a database"
        assert await _pushed(process.url)
        poll = asyncio.ensure_future(_poll(process.url))
        await until(lambda: _pushed(process.url))
        assert await asyncio.to_thread(process.stop) == 0
        await poll
        _, alive = await asyncio.to_thread(psutil.wait_procs, everything, 15)
        assert not alive
        assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()
        assert "Traceback" not in process.log
    finally:
        process.make_sure_it_is_gone()


async def _poll(url: str) -> int:
    """A long poll that the stop finds waiting."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        return (await http.get("/api/v1/pop/queue/empty", params={"wait": True, "timeout": 50_000})).status_code


def test_a_taken_port(database_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = ServeProcess(tmp_path, "late", "--workers", "2", DATABASE_URL=database_url, PORT=str(port))
        process.launch()
        try:
            assert process.wait() == 1
        finally:
            process.make_sure_it_is_gone()
    said = process.log.strip().splitlines()
    assert len(said) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said[0]


async def test_a_port_that_other_workers_have(serve: ServeProcess, database_url: str, tmp_path: Path) -> None:
    """They share it among themselves, and with nobody else."""
    port = serve.url.rpartition(":")[2]
    late = ServeProcess(tmp_path, "late", "--workers", "2", DATABASE_URL=database_url, PORT=port)
    late.launch()
    try:
        assert await asyncio.to_thread(late.wait) == 1
    finally:
        late.make_sure_it_is_gone()
    assert f"cannot listen on 127.0.0.1:{port}" in late.log


async def test_a_worker_that_cannot_start_says_why(database_url: str, tmp_path: Path) -> None:
    elsewhere = database_url.rpartition("/")[0] + "/nothing"
    process = ServeProcess(tmp_path, "lost", "--workers", "2", DATABASE_URL=elsewhere)
    process.launch()
    try:
        assert await asyncio.to_thread(process.wait) == 1
    finally:
        process.make_sure_it_is_gone()
    said = [line for line in process.log.strip().splitlines() if "the receive buffer for UDP" not in line]
    assert len(said) == 1, process.log
    assert "cannot connect to PostgreSQL" in said[0]


async def test_with_peers_every_worker_is_a_member_of_the_other_servers(database_url: str, tmp_path: Path) -> None:
    """The peers are told of one port; they learn of the other worker from its heartbeats."""
    ports = [free_udp_port(), free_udp_port()]
    hosts = [
        ServeProcess(
            tmp_path,
            f"host-{number}",
            "--workers",
            "2",
            DATABASE_URL=database_url,
            DB_POOL_SIZE="4",
            QUEEN_UDP_PORT=str(port),
            QUEEN_UDP_PEERS=f"127.0.0.1:{ports[1 - number]}",
            QUEEN_SYNC_SECRET=SECRET,
        )
        for number, port in enumerate(ports)
    ]
    try:
        for host in hosts:
            await host.start()
        for host in hosts:
            async with httpx.AsyncClient(base_url=host.url, timeout=30) as http:
                await until(lambda http=http: _others(Remote(http), 3))
        assert [await asyncio.to_thread(host.stop) for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            host.make_sure_it_is_gone()


async def test_one_worker_becomes_two_on_its_port(database_url: str, tmp_path: Path) -> None:
    """The system remembers the connections that a server has closed for a minute."""
    port = str(free_port())
    for workers in ("1", "2"):
        serve = ServeProcess(tmp_path, f"of-{workers}", "--workers", workers, DATABASE_URL=database_url, PORT=port)
        try:
            await serve.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert serve.stop() == 0
            async with asyncio.timeout(30):
                await reader.read()  # the server has closed it, so it is the server's side that lingers
            writer.close()
            await writer.wait_closed()
        finally:
            serve.make_sure_it_is_gone()


# One journal


class Producer:
    """Pushes numbers to one partition, one after the other, each through whichever worker it is told to."""

    def __init__(self) -> None:
        self.accepted = 0
        self.answers: list[str] = []

    async def push(self, remote: Remote) -> None:
        """Until it is accepted, as a careful producer does: the same transactionId makes repeats harmless."""
        item = {"queue": "q", "partition": "p", "transactionId": str(self.accepted), "payload": self.accepted}
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await remote.http.post("/api/v1/push", json={"items": [item]})
                    if answer.status_code in (201, 202):
                        break
                    assert answer.status_code in (429, 503), answer.text
                await asyncio.sleep(0.02)
        self.accepted += 1
        self.answers.append(answer.json()[0].get("reason", "stored"))


@contextlib.asynccontextmanager
async def pair_behind(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two workers whose database can be taken away."""
    process = ServeProcess(
        tmp_path,
        "pair",
        "--workers",
        "2",
        DATABASE_URL=proxy.url,
        DB_POOL_SIZE=str(POOL_SIZE),
        FILE_BUFFER_DIR=str(tmp_path / "journal"),
        QUEEN_ENCRYPTION_KEY="07" * 32,
        QUEEN_DATABASE_PING_MS="50",
        QUEEN_OUTAGE_AFTER_MS="500",
        QUEEN_JOURNAL_WAIT_MS="200",
    )
    try:
        await process.start()
        async with Pair(process) as pair:
            yield pair
    finally:
        process.make_sure_it_is_gone()


async def _stored_again(producer: Producer, *remotes: Remote) -> None:
    """Push in turn, until pushes go to the database again through each of them."""
    async with asyncio.timeout(60):
        while producer.answers[-len(remotes) :] != ["stored"] * len(remotes):
            for remote in remotes:
                await producer.push(remote)


async def test_the_order_of_a_producer_holds_over_an_outage_whichever_worker_it_reaches(
    database_url: str, tmp_path: Path
) -> None:
    producer = Producer()
    async with relayed(database_url) as proxy, pair_behind(proxy, tmp_path) as pair:
        remotes = await pair.reach()
        for remote in (*remotes, *remotes):
            await producer.push(remote)
        await proxy.close()
        for number in range(30):
            await producer.push(remotes[number % 2])
        # A worker that has not noticed the outage yet knows all the same that the journal holds earlier pushes.
        assert set(producer.answers[4:]) <= {"database_unavailable", "maintaining_order"}
        for remote in remotes:
            stats = (await remote.http.get("/health")).json()
            assert stats["journal"]["messages"] == 30, "whichever worker is asked"
        await proxy.open()
        await _stored_again(producer, *remotes)
        assert data(await remotes[1].queen.drain("q", "p")) == list(range(producer.accepted))
        assert len(list((tmp_path / "journal").glob("[0-9]*"))) == 1


async def test_the_order_holds_when_the_worker_that_keeps_the_journal_is_killed(
    database_url: str, tmp_path: Path
) -> None:
    producer = Producer()
    async with relayed(database_url) as proxy, pair_behind(proxy, tmp_path) as pair:
        keeper, other = await pair.reach()
        victim = min(workers_of(pair.serve), key=lambda worker: worker.create_time())
        await proxy.close()
        for number in range(10):
            await producer.push((keeper, other)[number % 2])
        victim.kill()
        for _ in range(10):
            await producer.push(other)
        await until(lambda: len(workers_of(pair.serve)) == 2)
        # A server that has not noticed yet that the database is away keeps its order behind what is journalled.
        assert set(producer.answers) <= {"database_unavailable", "maintaining_order"}
        await proxy.open()
        await _stored_again(producer, other)
        assert data(await other.queen.drain("q", "p")) == list(range(producer.accepted))
