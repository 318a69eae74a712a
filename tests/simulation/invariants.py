"""What must hold in a simulated cluster, all the time or once it has settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queenmq.cluster.port import Advice
from queenmq.cluster.state import SharedState
from simulation.node import BOUNDS, SETTINGS, Node

if TYPE_CHECKING:
    from simulation.world import World


def within_bounds(node: Node, state: SharedState) -> None:
    assert len(node.caches.options) <= BOUNDS.queues
    assert len(node.caches.options._tombstones) <= BOUNDS.tombstones
    assert len(node.caches.partition_ids) <= BOUNDS.partition_ids
    assert len(state.presence) <= SETTINGS.presence_max
    assert len(state.lease_hints) <= SETTINGS.lease_hints_max
    assert len(state.members) <= SETTINGS.max_members
    assert len(state.greetings) <= SETTINGS.max_challenges + SETTINGS.max_senders
    assert len(state.replay) <= SETTINGS.max_senders
    assert len(state.replay._floors) <= SETTINGS.max_epoch_floors


def nobody_is_elsewhere(world: World, node: Node, state: SharedState, *, settled: bool = False) -> None:
    """A server that has proved where it is is believed to be nowhere else. A newcomer may be looked for at a configured
    address for a moment, because it may not know its own, and for good if it has died since."""
    if world.poisoned:
        return
    for member in state.members.members():
        if member.confirmed or (settled and member.alive):
            true = world.by_name[member.id].address
            assert member.address == true, f"{node.name} writes to {member.id} at {member.address}"
        else:
            assert member.address in world.by_address, f"{node.name} writes to {member.id} at {member.address}"


def no_older_configs(world: World, node: Node) -> None:
    """Whoever was told of a version never goes back to an older one, nor to a queue that was deleted since."""
    if world.poisoned:
        return
    for queue, newest in node.life.configs.items():
        version = node.caches.options.version(queue)
        assert version is None or version >= newest, f"{node.name} went back to version {version} of {queue}"


def dead_everywhere(world: World, crashed: Node, crashed_at: float) -> None:
    """Six seconds after a crash nobody thinks that the server lives, and nobody believes a hint of it."""
    if crashed.running is not None or crashed.crashed_at != crashed_at:
        return
    for node, state in world.living():
        assert not state.members.is_alive(crashed.name), f"{node.name} thinks that {crashed.name} lives"
        assert not state.presence.queues_of(crashed.name), f"{node.name} keeps the consumers of {crashed.name}"
        assert not state.lease_hints.held_by(crashed.name), f"{node.name} keeps hints of {crashed.name}"


def settled(world: World) -> None:
    """The network is whole and quiet: everybody agrees with the truth."""
    living = {node.name for node, _ in world.living()}
    for node, state in world.living():
        known = {member.id for member in state.members.members() if member.alive}
        assert known == living - {node.name}, f"{node.name} knows {known}, alive are {living}"
        _counted(state)
        nobody_is_elsewhere(world, node, state, settled=True)
        _presence(world, node, state)
        _configs(world, node)
        _hints(world, node, state, living)


def _counted(state: SharedState) -> None:
    """Sizes that are kept beside the tables are those of the tables."""
    presence = state.presence
    claims = [(server, queue) for server, queues in presence._by_server.items() for queue in queues]
    assert len(presence) == len(claims)
    assert sorted(claims) == sorted((s, queue) for queue, servers in presence._by_queue.items() for s in servers)


def _presence(world: World, node: Node, state: SharedState) -> None:
    for other, _ in world.living():
        if other is not node:
            seen = state.presence.queues_of(other.name)
            assert seen == other.consumers.keys(), (
                f"{node.name} sees {seen} at {other.name}, not {list(other.consumers)}"
            )
    for queue in {queue for other, _ in world.living() for queue in other.consumers}:
        told = {address for address, _ in state.pushed([(queue, [])])}
        waiting = {other.address for other, _ in world.living() if other is not node and queue in other.consumers}
        assert waiting <= told, f"a push of {node.name} to {queue} is not told to {waiting - told}"


def _configs(world: World, node: Node) -> None:
    rows = world.database.rows
    configs = node.caches.options
    assert set(configs._known) == set(rows), f"{node.name} knows {set(configs._known)}, there are {set(rows)}"
    for queue, row in rows.items():
        assert configs.version(queue) == row.version, f"{node.name} has an old version of {queue}"
        assert configs.peek(queue) == row.options
    for switch, (on, _) in world.database.switches.items():
        assert node.caches.switches.is_on(switch) == on, f"{node.name} has {switch} wrong"


def _hints(world: World, node: Node, state: SharedState, living: set[str]) -> None:
    for lease, hint in list(state.lease_hints._hints.items()):
        if hint.server not in living:
            advice = state.lease_hints.advice(*lease, node.clock(world.now))
            assert advice is Advice.TRY, f"{node.name} believes {hint.server}, which is dead"
