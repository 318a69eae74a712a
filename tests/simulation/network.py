"""A network that loses, delays, reorders, duplicates, splits and heals, and on which somebody sends copies of packets
to other servers than they are for; all by one seeded source of chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from queenmq.cluster.membership import Address
from queenmq.cluster.outbox import Outgoing

LONGEST_DELAY_S = 0.3
OUTSIDER = ("6.6.6.6", 666)

Deliver = Callable[[Address, Address, bytes], None]
Schedule = Callable[[float, Callable[[], None]], None]


@dataclass(slots=True)
class Weather:
    loss: float
    duplication: float
    slowness: float  # the share of packets that are late, and so overtaken
    misled: float = 0.0  # the share of packets that also come to another server, from somewhere else

    @classmethod
    def any(cls, chance: Random) -> Weather:
        if chance.random() < 0.1:
            return cls(1.0, 0.0, 0.0)
        loss, slowness = chance.choice([0, 0, 0.1, 0.3]), chance.choice([0, 0.1, 0.3])
        return cls(loss, chance.choice([0, 0.1]), slowness, chance.choice([0, 0.3]))


FAIR = Weather(0.0, 0.0, 0.1)


class Network:
    def __init__(self, chance: Random, schedule: Schedule, deliver: Deliver) -> None:
        self._chance = chance
        self._schedule = schedule
        self._deliver = deliver
        self.weather = Weather.any(chance)
        self.addresses: list[Address] = []
        self.side: dict[Address, int] = {}  # of a split network

    def send(self, source: Address, outgoing: list[Outgoing]) -> None:
        for address, datagram in outgoing:
            if self._chance.random() < self.weather.misled:
                self._mislead(datagram)
            if self.side.get(source) != self.side.get(address) or self._chance.random() < self.weather.loss:
                continue
            self._carry(source, address, datagram)
            if self._chance.random() < self.weather.duplication:
                self._carry(source, address, datagram)

    def _mislead(self, datagram: bytes) -> None:
        """Splits and losses do not keep an outsider from anything."""
        victim = self._chance.choice(self.addresses)
        self._carry(self._chance.choice([OUTSIDER, *self.addresses]), victim, datagram)

    def split(self, addresses: list[Address]) -> None:
        self.side = {address: self._chance.randrange(2) for address in addresses}

    def heal(self) -> None:
        self.side = {}

    def _carry(self, source: Address, address: Address, datagram: bytes) -> None:
        late = self._chance.random() < self.weather.slowness
        delay_s = self._chance.random() * (LONGEST_DELAY_S if late else 0.002)
        self._schedule(delay_s, lambda: self._deliver(source, address, datagram))
