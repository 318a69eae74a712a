"""What TLS costs the server: the same pushes and the same new connections with it and without, in turns."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from statistics import median
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queen_bench.connection import Connection
from queen_bench.errors import BenchError
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.server import companion
from queen_bench.subject import HttpSubject, Subject
from queen_bench.token_check import token_costs

TURNS: Final = 5
CONNECTIONS: Final = 8
PUSHES: Final = 2_000
PAYLOAD_BYTES: Final = 1_000
OPENED: Final = 300
TARGET: Final = b"/api/v1/push"
STORED: Final = 201
OK: Final = 200


@dataclass(frozen=True)
class TlsCost:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return f"CPU of the server for a push of {PAYLOAD_BYTES} bytes and for a new connection, with TLS and without"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject) or subject.folder is None:
            raise BenchError("servers can be added only to a server that the benchmark has started")
        files = _certificate(subject.folder)
        context = ssl.create_default_context(cafile=files[0])
        costs: dict[str, list[float]] = {}
        async with (
            companion(subject.folder, "plain") as plain,
            companion(
                subject.folder, "tls", QUEEN_TLS_CERT_FILE=str(files[0]), QUEEN_TLS_KEY_FILE=str(files[1])
            ) as secure,
        ):
            ways: list[tuple[str, HttpSubject, ssl.SSLContext | None]] = [
                ("plain", plain, None),
                ("tls", secure, context),
            ]
            for _, server, trusted in ways:
                await _pushes(server, trusted)  # once for nothing
            for turn in range(TURNS):
                for state, server, trusted in ways if turn % 2 else ways[::-1]:
                    costs.setdefault(f"push_cpu_us_{state}", []).append(await _pushes(server, trusted))
                    costs.setdefault(f"connection_cpu_us_{state}", []).append(await _connections(server, trusted))
        figures: dict[str, Extra] = {name: median(values) for name, values in costs.items()}
        figures["push_cpu_us_spread_plain"] = max(costs["push_cpu_us_plain"]) - min(costs["push_cpu_us_plain"])
        figures["push_cpu_us_spread_tls"] = max(costs["push_cpu_us_tls"]) - min(costs["push_cpu_us_tls"])
        figures.update(await token_costs())
        return Result(extra=figures)


async def _pushes(server: HttpSubject, trusted: ssl.SSLContext | None) -> float:
    """CPU of the server for one push, in µs."""
    connections = [await Connection.open(server.host, server.port, trusted) for _ in range(CONNECTIONS)]
    body = b'{"items":[{"queue":"tls","partition":"%d","payload":"' + b"x" * PAYLOAD_BYTES + b'"}]}'

    async def push(number: int) -> None:
        for _ in range(PUSHES // CONNECTIONS):
            status, answer = await connections[number].post(TARGET, body % number)
            if status != STORED:
                raise BenchError(f"a push was answered with {status}: {answer[:200]!r}")

    before = _cpu_s(server)
    await asyncio.gather(*map(push, range(CONNECTIONS)))
    spent = _cpu_s(server) - before
    for connection in connections:
        connection.close()
    return spent / PUSHES * 1e6


async def _connections(server: HttpSubject, trusted: ssl.SSLContext | None) -> float:
    """CPU of the server for a new connection with one small request, in µs."""
    before = _cpu_s(server)
    for _ in range(OPENED):
        connection = await Connection.open(server.host, server.port, trusted)
        status, _ = await connection.get("/openapi.json")
        if status != OK:
            raise BenchError(f"a request was answered with {status}")
        connection.close()
    return (_cpu_s(server) - before) / OPENED * 1e6


def _cpu_s(server: HttpSubject) -> float:
    used = server.watch.usage().server_cpu_s
    if used is None:
        raise BenchError("the CPU time of the server is not known")
    return used


def _certificate(folder: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself; ECDSA on P-256, as most authorities give out today."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "queen bench")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "bench.crt", folder / "bench.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files
