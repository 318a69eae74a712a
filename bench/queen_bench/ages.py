"""How old messages are when they arrive: from the moment a push was due to the moment a pop had the message."""

from __future__ import annotations

from queen_bench.audit import parse


class Ages:
    """One time is kept per request and lane, because all requests put the same number of messages into a lane."""

    def __init__(self, per_request: int) -> None:
        self._per_request = per_request
        self._times: dict[int, list[float]] = {}
        self._first: dict[int, int] = {}
        self.seen_s: list[float] = []

    def sent(self, lane: int, first: int, at: float) -> None:
        """Note a request; what was sent to the lane before the first one noted has no age."""
        times = self._times.get(lane)
        if times is None:
            self._times[lane] = [at]
            self._first[lane] = first
        else:
            times.append(at)

    def received(self, ids: list[str], at: float) -> None:
        """Note an answer by its first message, the oldest of its partition."""
        lane, sequence = parse(ids[0])
        since = sequence - self._first.get(lane, sequence + 1)
        if since >= 0:
            self.seen_s.append(at - self._times[lane][since // self._per_request])
