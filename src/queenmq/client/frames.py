"""What is said on a consumer connection, as it is sent and received (docs/consumer-connection.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from queenmq.client.finish import Finish
from queenmq.client.models import FinishResult, PopAnswer
from queenmq.client.sizing import Size

# In one message to the server, which takes 1 MiB and so many elements of a list.
_MOST_BYTES: Final = 512 * 1024
_MOST_FINISHED: Final = 64


class Received(msgspec.Struct, kw_only=True):
    delivered: list[PopAnswer] = []
    finished: list[FinishResult] = []


class FinishLease(Finish, kw_only=True, rename="camel", omit_defaults=True):
    lease_id: str = ""


received = msgspec.json.Decoder(Received).decode
_encode = msgspec.json.Encoder().encode


def frames(finish: Sequence[FinishLease], size: Size | None, *, stop: bool) -> Iterator[bytes]:
    """At least one message; `size` is that of batches from now on."""
    said = {"stop": stop} | ({} if size is None else size._asdict())
    some: list[msgspec.Raw] = []
    for one in finish:
        encoded = msgspec.Raw(_encode(one))
        if some and (len(some) >= _MOST_FINISHED or sum(map(len, some)) + len(encoded) > _MOST_BYTES):
            yield _encode(said | {"finish": some})
            some = []
        some.append(encoded)
    yield _encode(said | {"finish": some})
