"""What is said of a whole lease, and how it is said again when messages of it are gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from queenmq.client.models import FinishResult, Message

_NO_MESSAGE = "Message not found"


class Excepted(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What is said of one message of a lease instead."""

    transaction_id: str
    partition_id: str
    status: str = ""
    error: str | None = None


class Finish(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What is said of all messages of a lease that are not finished, as it is sent."""

    status: str = "completed"
    error: str | None = None
    excepted: list[Excepted] = msgspec.field(name="except", default_factory=list)


def to_excepted(message: Message, finish: Finish) -> Excepted:
    return Excepted(
        transaction_id=message.transaction_id,
        partition_id=message.partition_id,
        status=finish.status,
        error=finish.error,
    )


def without_missing(finish: Finish, result: FinishResult) -> Finish | None:
    """What is left to be said if messages of which something else was said were deleted meanwhile. None if none was.

    The server refuses such a finish, because it cannot tell a deleted message from a wrong name.
    """
    if result.code != "message_not_found":
        return None
    missing = {one.index for one in result.excepted if one.error == _NO_MESSAGE}
    left = [one for index, one in enumerate(finish.excepted) if index not in missing]
    return None if len(left) == len(finish.excepted) else msgspec.structs.replace(finish, excepted=left)


async def finish_what_is_left(
    send: Callable[[str, Finish], Awaitable[FinishResult]], lease_id: str, finish: Finish
) -> FinishResult:
    """Finish a lease, without what was said of messages that are deleted."""
    while True:
        result = await send(lease_id, finish)
        left = without_missing(finish, result)
        if left is None:
            return result
        finish = left
