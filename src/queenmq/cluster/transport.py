"""The UDP socket of the cluster: bound once, never blocking, and indifferent to errors of single packets."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Iterable

from queenmq.cluster.membership import Address
from queenmq.cluster.outbox import Outgoing
from queenmq.config import ClusterSettings
from queenmq.errors import StartupError

log = logging.getLogger(__name__)

_MEGABYTE = 1024 * 1024
_MOST_REMEMBERED = 1024


def open_socket(host: str, port: int, receive_buffer_mb: int) -> socket.socket:
    """A bound socket. Raises StartupError if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise StartupError(f"cannot use UDP address {host}:{port}: {error}") from None
    try:
        bound.setblocking(False)
        # A burst, as after a restart, must fit; the system cuts it to net.core.rmem_max.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_mb * _MEGABYTE)
        _report_buffer(bound, receive_buffer_mb)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StartupError(
            f"cannot listen on UDP {host}:{port}: {error.strerror}; choose another with QUEEN_UDP_PORT"
        ) from None
    return bound


def _report_buffer(bound: socket.socket, wanted_mb: int) -> None:
    """Linux says twice of what it gives, because it counts its own records of the packets."""
    given = bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // (2 if sys.platform == "linux" else 1)
    if given < wanted_mb * _MEGABYTE:
        log.warning(
            "the receive buffer for UDP has %d KiB, not %d MiB as asked for: packets of a burst may get lost, which "
            "costs time and nothing else; raise net.core.rmem_max, or lower QUEEN_SYNC_RECV_BUFFER_MB",
            *(given // 1024, wanted_mb),
        )
    else:
        log.info("the receive buffer for UDP has %d KiB", given // 1024)


def listen(cluster: ClusterSettings) -> socket.socket:
    """The socket that the settings ask for: only on loopback if that is where all the peers are."""
    host = cluster.udp_host or ("127.0.0.1" if all(map(_on_loopback, cluster.peers)) else "0.0.0.0")
    return open_socket(host, cluster.udp_port, cluster.receive_buffer_mb)


def resolve(peers: Iterable[Address]) -> list[Address]:
    """The addresses of the peers; a name that is not known now is left out, and asked for again later."""
    addresses: list[Address] = []
    for host, port in peers:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            continue
        addresses += [(str(entry[4][0]), int(entry[4][1])) for entry in found]
    return list(dict.fromkeys(addresses))


def _on_loopback(peer: Address) -> bool:
    """A name that is not known yet may turn out to be anywhere."""
    addresses = resolve([peer])
    return bool(addresses) and all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host, _ in addresses)


def _local_host(peer: Address) -> str:
    """The address of this machine that packets to the peer leave from. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in peer[0] else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


class Transport(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, Address], None]) -> None:
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None
        self._towards: dict[Address, str] = {}
        self.errors = 0

    async def start(self, bound: socket.socket) -> None:
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=bound)

    @property
    def port(self) -> int:
        if self._transport is None:
            raise RuntimeError("the transport is closed")
        return int(self._transport.get_extra_info("sockname")[1])

    def address_towards(self, peer: Address) -> Address:
        """Where that peer reaches this socket, as far as this machine knows; ("", 0) if there is no route to it."""
        if self._transport is None:
            return "", 0
        host, port = self._transport.get_extra_info("sockname")[:2]
        if host not in ("0.0.0.0", "::"):
            return str(host), int(port)
        known = self._towards.get(peer)
        if known is None:
            known = _local_host(peer)
            if len(self._towards) < _MOST_REMEMBERED:
                self._towards[peer] = known
        return (known, int(port)) if known else ("", 0)

    def forget_routes(self) -> None:
        """This machine may have got other addresses."""
        self._towards.clear()

    def send(self, packets: Iterable[Outgoing]) -> None:
        if self._transport is None:
            return
        for address, datagram in packets:
            try:
                self._transport.sendto(datagram, address)
            except (OSError, ValueError):
                # Also an address of another family, or one that is none.
                self.errors += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._received(data, (addr[0], addr[1]))

    def error_received(self, exc: Exception) -> None:
        # For instance that nobody listens at a peer's port. The heartbeats show who lives.
        self.errors += 1
