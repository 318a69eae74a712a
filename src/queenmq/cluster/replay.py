"""Which packets of a sender are new: one life at a time, each sequence once, nothing long overtaken.

A sender's life has a boot epoch that only grows. A newer epoch is believed at once; an older one is a former life and
never comes back. Within a life a sliding window (the kind of RFC 6479) admits reordered packets and refuses repeated
ones. The window begins with the first packet received, so that what was recorded before this server knew the sender
is refused; and what was overtaken for longer than an age is refused too, however few packets came since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.refusal import Refusal


class _Floor(NamedTuple):
    """The lowest that is acceptable of a sender of whom no more is known."""

    epoch: int
    sequence: int
    since: float


class _Life:
    """What was received in one life of a sender."""

    __slots__ = ("bits", "epoch", "highest", "lowest", "mark", "marked_at", "since")

    def __init__(self, epoch: int, sequence: int, now: float) -> None:
        self.epoch = epoch
        self.since = now
        self.highest = self.lowest = self.mark = sequence
        self.marked_at = now
        self.bits = 1  # bit n: highest - n was received

    def admit(self, sequence: int, now: float, window: int, age_s: float) -> Refusal | None:
        if now - self.marked_at >= age_s:
            self.lowest, self.mark, self.marked_at = self.mark, self.highest, now
        ahead = sequence - self.highest
        if ahead > 0:
            self.bits = (self.bits << ahead | 1) & ((1 << window) - 1) if ahead < window else 1
            self.highest = sequence
            return None
        if -ahead >= window or sequence < self.lowest:
            return Refusal.TOO_OLD
        bit = 1 << -ahead
        if self.bits & bit:
            return Refusal.REPLAYED
        self.bits |= bit
        return None


class ReplayGuard:
    def __init__(self, bounds: ClusterBounds) -> None:
        self._bounds = bounds
        self._lives: OrderedDict[str, _Life] = OrderedDict()  # the least recently active first
        self._floors: OrderedDict[str, _Floor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lives)

    def admit(self, sender: str, epoch: int, sequence: int, now: float) -> Refusal | None:
        """None if the packet is new, and then it never is again; else why it is refused."""
        life = self._lives.get(sender)
        if life is None or epoch > life.epoch:
            return self._begin(sender, epoch, sequence, now)
        if epoch < life.epoch:
            return Refusal.OLD_EPOCH
        refusal = life.admit(sequence, now, self._bounds.replay_window, self._bounds.replay_age_s)
        if refusal is None:
            self._lives.move_to_end(sender)
        return refusal

    def know_epochs(self, epochs: Mapping[str, int], read_started_at: float) -> None:
        """The epochs that the database has issued: older ones are refused even if nothing of the newer was received.

        An epoch that the database had not issued when it was read, and that was received before, was invented.
        """
        for sender, epoch in epochs.items():
            known = self._lives.get(sender) or self._floors.get(sender)
            if known is None or known.epoch < epoch or (known.epoch > epoch and known.since < read_started_at):
                self._lives.pop(sender, None)
                self._set_floor(sender, _Floor(epoch, 0, read_started_at))

    def _begin(self, sender: str, epoch: int, sequence: int, now: float) -> Refusal | None:
        floor = self._floors.get(sender)
        if floor is not None and (epoch, sequence) < floor[:2]:
            return Refusal.OLD_EPOCH if epoch < floor.epoch else Refusal.TOO_OLD
        self._floors.pop(sender, None)
        self._lives[sender] = _Life(epoch, sequence, now)
        self._lives.move_to_end(sender)
        if len(self._lives) > self._bounds.max_senders:
            forgotten, life = self._lives.popitem(last=False)
            self._set_floor(forgotten, _Floor(life.epoch, life.highest + 1, life.since))
        return None

    def _set_floor(self, sender: str, floor: _Floor) -> None:
        self._floors[sender] = floor
        self._floors.move_to_end(sender)
        if len(self._floors) > self._bounds.max_epoch_floors:
            self._floors.popitem(last=False)
