"""What happens to a simulated cluster: work, accidents, packets repeated by an eavesdropper, a liar with the key."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from queenmq.cluster.events import OtherVersion
from queenmq.cluster.frame import MAX_PAYLOAD, encode_sender, seal
from queenmq.cluster.messages import Heartbeat, MessageType, encode
from queenmq.cluster.port import Advice
from queenmq.cluster.state import SharedState
from queenmq.core.maintenance import Switch
from simulation.network import OUTSIDER
from simulation.node import RING, Node
from simulation.world import World

QUEUES = ["orders", "orders:new", "mail", "ünï", "x" * 255]
NEWEST = 2**63 - 1


def _lease(chance: Random) -> tuple[str, str, str]:
    return (chance.choice(QUEUES), chance.choice("pqr"), chance.choice("gh"))


def consume(world: World, node: Node, state: SharedState) -> None:
    queue = world.chance.choice(QUEUES)
    if queue in node.consumers:
        del node.consumers[queue]
        world.send(node, state.consumer_deregistered(queue, node.clock(world.now)))
    else:
        node.consumers[queue] = None
        world.send(node, state.consumer_registered(queue))


def push(world: World, node: Node, state: SharedState) -> None:
    queues = world.chance.sample(QUEUES, world.chance.randint(1, 3))
    world.send(node, state.pushed([(queue, []) for queue in queues]))


def lease(world: World, node: Node, state: SharedState) -> None:
    wanted = _lease(world.chance)
    if state.lease_hints.advice(*wanted, node.clock(world.now)) is Advice.SKIP:
        return
    node.leases[wanted] = None
    world.send(node, state.lease_acquired([(*wanted, world.chance.choice([5, 30, 300]))]))


def release(world: World, node: Node, state: SharedState) -> None:
    if node.leases:
        ended, _ = node.leases.popitem()
        world.send(node, state.lease_released([ended]))


def configure(world: World, node: Node, state: SharedState) -> None:
    """Sometimes several servers at once, so that their packets race."""
    queue = world.chance.choice(QUEUES)
    for _ in range(world.chance.choice([1, 1, 3])):
        row = world.database.set(queue, {"leaseTime": world.chance.randint(1, 300)})
        node.life.told(queue, row.version)
        node.moment = world.now
        node.caches.set_options(*row)
        world.send(node, state.config_set(*row))
        node, state = world.chance.choice(world.living())


def delete(world: World, node: Node, state: SharedState) -> None:
    queue = world.chance.choice(QUEUES)
    version = world.database.delete(queue)
    node.life.told(queue, version)
    node.moment = world.now
    node.caches.delete_queue(queue, version)
    world.send(node, state.config_deleted([(queue, version)]))


def partitions(world: World, node: Node, state: SharedState) -> None:
    queue, partition, _ = _lease(world.chance)
    if node.caches.partition_ids.get(queue, partition, node.clock(world.now)) is None:
        node.caches.partition_ids.put(queue, partition, "id", node.clock(world.now))
    else:
        node.caches.delete_partitions([(queue, partition)])
        world.send(node, state.partition_deleted([(queue, partition)]))


def maintain(world: World, node: Node, state: SharedState) -> None:
    switch, on = world.chance.choice(list(Switch)), world.chance.random() < 0.5
    version = world.database.next_version()
    world.database.switches[switch] = (on, version)
    node.moment = world.now
    node.caches.set_maintenance(switch, on, version)
    world.send(node, state.maintenance_set(switch, on, version))


def crash(world: World, node: Node, state: SharedState) -> None:
    if world.nodes.index(node) >= world.spared:
        world.crash(node)


def restart(world: World, node: Node, state: SharedState) -> None:
    crash(world, node, state)
    revive(world, node, state)


def revive(world: World, node: Node, state: SharedState) -> None:
    dead = [other for other in world.nodes if other.running is None]
    if dead:
        world.boot(world.chance.choice(dead))


def weather(world: World, node: Node, state: SharedState) -> None:
    world.change_weather()


def split(world: World, node: Node, state: SharedState) -> None:
    world.network.split([other.address for other in world.nodes])


def heal(world: World, node: Node, state: SharedState) -> None:
    world.network.heal()


def replay(world: World, node: Node, state: SharedState) -> None:
    """Repeat recorded packets that this server must know for what they are. `deliver` checks that it does."""
    for _ in range(min(5, len(world.recorded))):
        packet = world.chance.choice(world.recorded)
        if node.life.must_refuse(packet.frame):
            source = world.chance.choice([packet.source, OUTSIDER])
            world.deliver(source, node.address, packet.datagram)


def junk(world: World, node: Node, state: SharedState) -> None:
    for packet in world.chance.sample(world.recorded, min(3, len(world.recorded))):
        damaged = bytearray(packet.datagram)
        damaged[world.chance.randrange(len(damaged))] ^= 1 << world.chance.randrange(8)
        before = state.traffic.dropped.total()
        events = state.receive(bytes(damaged), packet.source, node.clock(world.now))
        assert all(isinstance(event, OtherVersion) for event in events)
        assert state.traffic.dropped.total() == before + 1


def poison(world: World, node: Node, state: SharedState) -> None:
    """Signed nonsense, of strangers, or of another server in a life that the database never gave out."""
    if not world.poisoned:
        return
    chance = world.chance
    for number in range(12):
        type, payload = _nonsense(chance)
        if chance.random() < 0.9:
            sender, epoch, sequence = f"evil-{chance.randrange(20)}", 1, int(world.now * 1000) + number
        else:
            sender, epoch = chance.choice(world.nodes).name, chance.randint(10**6, 2**64 - 1)
            sequence = chance.randrange(2**64)
        datagram = seal(RING, type, encode_sender(sender), state._life, epoch, sequence, payload)
        world.deliver(("6.6.6.6", chance.randint(1, 9)), node.address, datagram)


def _nonsense(chance: Random) -> tuple[MessageType, bytes]:
    type = chance.choice([*MessageType, MessageType.HEARTBEAT])
    queue = chance.choice([*QUEUES, f"evil-{chance.randrange(100)}"])
    version = chance.choice([0, 1, chance.randrange(1000), NEWEST])
    payloads: dict[MessageType, object] = {
        MessageType.MESSAGE_AVAILABLE: [[(queue, chance.randrange(2**31))]],
        MessageType.HEARTBEAT: ["", 0, [chance.randint(1, 65535) for _ in range(3)]],
        MessageType.GREETING: ["", 0, bytes(16), chance.randbytes(16), chance.randbytes(16), Heartbeat("", 0, [])],
        MessageType.GOODBYE: [],
        MessageType.QUEUE_CONFIG_SET: [queue, {"leaseTime": "much"}, version],
        MessageType.QUEUE_CONFIG_DELETE: [[(queue, version)]],
        MessageType.CONSUMER_REGISTERED: [[f"evil-{chance.randrange(1000)}" for _ in range(50)]],
        MessageType.CONSUMER_DEREGISTERED: [[queue]],
        MessageType.PRESENCE_SNAPSHOT: [chance.randrange(2**32), chance.randrange(2**32), [queue]],
        MessageType.PARTITION_DELETED: [[(queue, "p")]],
        MessageType.LEASE_HINT_ACQUIRED: [[(*_lease(chance), 2**31 - 1)]],
        MessageType.LEASE_HINT_RELEASED: [[_lease(chance)]],
        MessageType.MAINTENANCE_SET: [chance.choice(["push", "pop", "none"]), True, version],
    }
    if chance.random() < 0.1:
        return type, chance.randbytes(chance.randrange(MAX_PAYLOAD))
    return type, encode(payloads[type])


Action = Callable[[World, Node, SharedState], None]
WEIGHTS: dict[Action, int] = {
    consume: 8,
    push: 6,
    lease: 6,
    release: 3,
    configure: 4,
    delete: 2,
    partitions: 3,
    maintain: 2,
    crash: 1,
    restart: 1,
    revive: 2,
    weather: 1,
    split: 1,
    heal: 2,
    replay: 6,
    junk: 2,
    poison: 3,
}
_ACTIONS, _SHARES = list(WEIGHTS), list(WEIGHTS.values())


def live(world: World, seconds: float) -> None:
    """Let things happen for a while, some five a second."""
    end = world.now + seconds
    while world.now < end:
        world.run_until(world.now + world.chance.expovariate(5))
        living = world.living()
        if not living:
            world.boot(world.chance.choice(world.nodes))
            continue
        node, state = world.chance.choice(living)
        world.chance.choices(_ACTIONS, _SHARES)[0](world, node, state)
