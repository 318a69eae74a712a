"""https: a server is believed only if its certificate is, and the end is clean."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from client.faults import Answer, Scripted
from queenmq.client import NetworkError, Queen


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "queen")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    path = tmp_path / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


async def test_certificates_are_checked(certificate: Path) -> None:
    server = Scripted(default=Answer(201, [{"status": "queued"}]))
    server.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.tls.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=certificate)
    async with server:
        async with Queen(server.url, retry_attempts=1) as queen:
            with pytest.raises(NetworkError, match="certificate") as caught:
                await queen.queue("q").push(1)
            assert caught.value.sent is False
        assert not server.seen
        async with Queen(server.url, ssl_context=trusting) as queen:
            assert (await queen.queue("q").push(1)).stored
            assert (await queen.queue("q").push(2)).stored
    assert len(server.seen) == 2
