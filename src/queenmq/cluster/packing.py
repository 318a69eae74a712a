"""How lists are dealt out over as few frames as hold them.

An entry that fits no frame is left out and counted: the database covers it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from queenmq.cluster.frame import MAX_PAYLOAD
from queenmq.cluster.messages import MAX_HASH, PresenceSnapshot, encode

Entry = TypeVar("Entry")

_LIST_OVERHEAD = 4  # the payload's own array and the header of a list of up to 65,535
_SNAPSHOT_OVERHEAD = _LIST_OVERHEAD + 2 * 9


class Packed(NamedTuple):
    payloads: list[bytes]
    dropped: int


class _Share(NamedTuple, Generic[Entry]):
    entries: list[Entry]
    fits: bool


def pack(entries: Sequence[object]) -> Packed:
    """Payloads of any message that is one list, in the order of the entries."""
    if not entries:
        return Packed([], 0)
    whole = encode((entries,))
    if len(whole) <= MAX_PAYLOAD:
        return Packed([whole], 0)
    shares = list(_deal([[entry] for entry in entries], MAX_PAYLOAD - _LIST_OVERHEAD))
    return Packed(
        [encode((share.entries,)) for share in shares if share.fits],
        sum(len(share.entries) for share in shares if not share.fits),
    )


def pack_snapshot(queues: Iterable[str]) -> Packed:
    """Parts of a snapshot that together cover every hash; names of one hash stay together."""
    by_hash: dict[int, list[str]] = {}
    for queue in queues:
        by_hash.setdefault(name_hash(queue), []).append(queue)
    ordered = sorted(by_hash.items())
    shares = [
        share for share in _deal([names for _, names in ordered], MAX_PAYLOAD - _SNAPSHOT_OVERHEAD) if share.fits
    ] or [_Share([], True)]
    starts = [0, *(name_hash(share.entries[0]) for share in shares[1:]), MAX_HASH]
    parts = [
        encode(PresenceSnapshot(low, high, share.entries))
        for low, high, share in zip(starts, starts[1:], shares, strict=False)
    ]
    packed = sum(len(share.entries) for share in shares)
    return Packed(parts, sum(len(names) for names in by_hash.values()) - packed)


def name_hash(name: str) -> int:
    """Where a name lies in the range that the parts of a snapshot divide."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass"))


def _deal(groups: Iterable[list[Entry]], room: int) -> Iterable[_Share[Entry]]:
    """Groups in their order, filled up share by share; a group over the room comes alone and does not fit."""
    share: list[Entry] = []
    left = room
    for group in groups:
        size = sum(len(encode(entry)) for entry in group)
        if size > room:
            yield _Share(group, False)
            continue
        if size > left:
            yield _Share(share, True)
            share, left = [], room
        share.extend(group)
        left -= size
    if share:
        yield _Share(share, True)
