"""The queues that this server's own consumers wait for, and which of them are announced to the others.

The first consumer of a queue is announced at once, the going of the last one after a pause: a consumer that
takes a message and polls again would otherwise be announced twice a message. The bound is that of the long polls.
"""

from __future__ import annotations


class OwnConsumers:
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._announced: dict[str, None] = {}
        self._leaving: dict[str, float] = {}  # when the last one went, in that order

    def __len__(self) -> int:
        return len(self._announced)

    def __contains__(self, queue: str) -> bool:
        return queue in self._announced

    def queues(self) -> list[str]:
        """As announced."""
        return list(self._announced)

    def came(self, queue: str) -> bool:
        """True if this must be announced to the others."""
        self._leaving.pop(queue, None)
        if queue in self._announced:
            return False
        self._announced[queue] = None
        return True

    def went(self, queue: str, now: float) -> None:
        if queue in self._announced and queue not in self._leaving:
            self._leaving[queue] = now

    def gone(self, now: float) -> list[str]:
        """The queues whose last consumer has been away long enough to announce it, each once."""
        queues = []
        for queue, since in self._leaving.items():
            if now - since < self._pause_s:
                break
            queues.append(queue)
        for queue in queues:
            del self._leaving[queue], self._announced[queue]
        return queues
