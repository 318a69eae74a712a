"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
DAY = timedelta(days=1)


class Files(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1 and puts them into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        own = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + 3650 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(PEM))

    def sign(self, name: str = "server", *, days: float = 90, passphrase: bytes | None = None) -> Files:
        """Writes the files anew if there are some of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder(
                self._name,
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
                key.public_key(),
                x509.random_serial_number(),
            )
            .not_valid_before(now - 20 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        files = Files(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        files.certificate.write_bytes(certificate.public_bytes(PEM))
        files.key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden))
        return files

    def trusting(self, shown: Files | None = None) -> ssl.SSLContext:
        """The context of a client that believes this authority, and shows a certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if shown is not None:
            context.load_cert_chain(*shown)
        return context
