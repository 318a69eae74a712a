"""How a worker of a consumer gets messages, and how it says what became of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queenmq.client.finish import Finish
from queenmq.client.models import Message, TakeResult
from queenmq.client.sizing import Size

Pop = Callable[[Size, int], Awaitable[list[Message]]]
Take = Callable[[str, Finish, Size, int], Awaitable[TakeResult]]


@dataclass(frozen=True, slots=True)
class Polls:
    """Up to so many messages, waiting so long. `take` finishes the worker's last lease, too; None if that is not
    possible."""

    pop: Pop
    take: Take | None = None
