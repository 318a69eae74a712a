"""A public key that verifies tokens, of a PEM or of a key set, and the one algorithm that it serves."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

PublicKey = RSAPublicKey | Ed25519PublicKey | Ed448PublicKey

_RS256, _EDDSA = "RS256", "EdDSA"
PUBLIC_KEY_ALGORITHMS = frozenset({_RS256, _EDDSA})

_rsa = RSAAlgorithm(RSAAlgorithm.SHA256)
_okp = OKPAlgorithm()


def algorithm_of(key: PublicKey) -> str:
    return _RS256 if isinstance(key, RSAPublicKey) else _EDDSA


def is_signed_by(key: PublicKey, signed: bytes, signature: bytes) -> bool:
    if isinstance(key, RSAPublicKey):
        return _rsa.verify(signed, key, signature)
    return _okp.verify(signed, key, signature)
