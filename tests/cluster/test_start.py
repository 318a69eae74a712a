"""What stops the start of a clustered server: one sentence, status 1, and no secret in it."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path

import pytest
from ports import free_udp_port
from server_settings import settings_with

from cluster.processes import SECRET, ServeProcess
from queenmq.cluster import transport


def refused(folder: Path, *arguments: str, **variables: str) -> str:
    """The sentence with which `queen serve` ends."""
    server = ServeProcess(folder, "refused", *arguments, **variables)
    server.launch()
    try:
        assert server.wait() == 1
    finally:
        server.make_sure_it_is_gone()
    # The kernel of the machine may allow smaller buffers than are asked for.
    said = [line for line in server.log.strip().splitlines() if "the receive buffer for UDP" not in line]
    assert len(said) == 1, server.log
    for name in ("QUEEN_SYNC_SECRET", "QUEEN_SYNC_SECRET_PREVIOUS"):
        assert not variables.get(name) or variables[name] not in said[0]
    return said[0]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_peers_without_a_secret(tmp_path: Path, database_url: str, workers: str) -> None:
    sentence = refused(
        tmp_path,
        "--workers",
        workers,
        DATABASE_URL=database_url,
        QUEEN_UDP_PEERS="127.0.0.1:6635",
        QUEEN_UDP_PORT=str(free_udp_port()),
    )
    assert "QUEEN_SYNC_SECRET" in sentence
    assert "openssl rand -hex 32" in sentence


@pytest.mark.parametrize("name", ["QUEEN_SYNC_SECRET", "QUEEN_SYNC_SECRET_PREVIOUS"])
def test_a_malformed_secret(tmp_path: Path, database_url: str, name: str) -> None:
    bad = "5e" * 31 + "zz"
    variables = {"QUEEN_SYNC_SECRET": SECRET, name: bad}
    sentence = refused(tmp_path, DATABASE_URL=database_url, QUEEN_UDP_PEERS="127.0.0.1:6635", **variables)
    assert f"{name} cannot be used: its value must be 64 hexadecimal digits" in sentence


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_udp_port(tmp_path: Path, database_url: str, workers: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        sentence = refused(
            tmp_path,
            "--workers",
            workers,
            DATABASE_URL=database_url,
            QUEEN_UDP_PEERS="127.0.0.1:6635",
            QUEEN_UDP_PORT=str(port),
            QUEEN_SYNC_SECRET=SECRET,
        )
    assert f"cannot listen on UDP 127.0.0.1:{port}: Address already in use" in sentence
    assert "QUEEN_UDP_PORT" in sentence


def test_peers_that_are_none(tmp_path: Path, database_url: str) -> None:
    sentence = refused(
        tmp_path, DATABASE_URL=database_url, QUEEN_UDP_PEERS="127.0.0.1:6635,elsewhere", QUEEN_SYNC_SECRET=SECRET
    )
    assert "QUEEN_UDP_PEERS cannot be used" in sentence
    assert "must be a list of host:port, and 'elsewhere' is none" in sentence


async def test_peers_by_a_name_that_has_addresses_of_both_kinds(tmp_path: Path, database_url: str) -> None:
    """`localhost` is often ::1 as well, which a socket of IPv4 cannot send to."""
    server = ServeProcess(
        tmp_path,
        "named",
        DATABASE_URL=database_url,
        QUEEN_UDP_PEERS="localhost:6635,[::1]:6635,a..b:6635",
        QUEEN_UDP_PORT="0",
        QUEEN_SYNC_SECRET=SECRET,
    )
    try:
        await server.start()
        assert server.stop() == 0
        assert "Traceback" not in server.log
    finally:
        server.make_sure_it_is_gone()


@pytest.mark.parametrize(
    ("peers", "host"),
    [
        ([("127.0.0.1", 1), ("::1", 1)], "127.0.0.1"),
        ([("127.0.0.1", 1), ("192.0.2.1", 1)], "0.0.0.0"),
        ([("127.0.0.1", 1), ("a..b", 1)], "0.0.0.0"),
        ([("a..b", 1)], "0.0.0.0"),
    ],
)
def test_where_it_listens(peers: list[tuple[str, int]], host: str) -> None:
    """Only on loopback if all the peers are there; a name that is not known yet may turn out to be anywhere."""
    with transport.listen(settings_with(cluster={"peers": tuple(peers), "udp_port": 0}).cluster) as bound:
        assert bound.getsockname()[0] == host


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse what is too much")
def test_what_the_system_gives_of_the_receive_buffer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning if that is less than was asked for."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**31 - 1)
        most = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    too_much = most // 2**20 + 1
    with caplog.at_level(logging.INFO), transport.open_socket("127.0.0.1", 0, too_much):
        [record] = caplog.records
    assert record.levelno == logging.WARNING
    said = f"the receive buffer for UDP has {most // 1024} KiB, not {too_much} MiB as asked for"
    assert record.getMessage().startswith(said)
    assert "raise net.core.rmem_max, or lower QUEEN_SYNC_RECV_BUFFER_MB" in record.getMessage()

    caplog.clear()
    enough = most // 2**20
    with caplog.at_level(logging.INFO), transport.open_socket("127.0.0.1", 0, enough) as bound:
        [record] = caplog.records
        given = bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    # Where the system gives less than a MiB, nothing was asked for, and the smallest that there is was given.
    assert record.levelno == logging.INFO
    assert record.getMessage() == f"the receive buffer for UDP has {given // 1024} KiB"
    assert given >= enough * 2**20
