"""The broker of one server: the verbs of the product, on one database."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Set
from datetime import datetime
from typing import Any

from queenmq.broker.accepted import AcceptedPush
from queenmq.broker.ack import Acked, Acker
from queenmq.broker.activity import Activity
from queenmq.broker.administration import Administration, Configured, Labels, Purge, Redrive, Trace
from queenmq.broker.caches import Caches
from queenmq.broker.conditional_push import ConditionalPusher
from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.filters import Filters
from queenmq.broker.finish import Finished, Finisher, Taken
from queenmq.broker.in_flight import InFlight
from queenmq.broker.keys import Keys
from queenmq.broker.lane import Lane
from queenmq.broker.lease import Leases
from queenmq.broker.live import Live
from queenmq.broker.load import LoadWatch
from queenmq.broker.lock_wait import LockWait
from queenmq.broker.long_polls import LongPolls
from queenmq.broker.maintenance import Maintenance
from queenmq.broker.operation_runner import OperationProgress, OperationRunner
from queenmq.broker.outbox import Outbox
from queenmq.broker.parts import Parts, backoff_of, cache_bounds_of, concurrency_of, figures_of, journal_of, policy_of
from queenmq.broker.pauses import Pauses
from queenmq.broker.policies import Policies
from queenmq.broker.pop import Claim, Delivered, Filter, Popper
from queenmq.broker.push import Pusher, Targets
from queenmq.broker.queue_options import QueueOptions as KnownOptions
from queenmq.broker.safety_net import partitions_ready
from queenmq.broker.schemas import Schemas
from queenmq.broker.statistics import Statistics
from queenmq.broker.streams import Cycle, Cycled, Query, StateEntry, Streams
from queenmq.broker.timers import Timers
from queenmq.broker.transaction import Committed, Transaction, Transactor
from queenmq.broker.unmerged import Unmerged
from queenmq.broker.vitals import Vitals
from queenmq.clock import SYSTEM, Clock
from queenmq.cluster.node import Node
from queenmq.cluster.port import Alone, Cluster
from queenmq.config import Settings
from queenmq.core.acknowledgement import Finish, Run
from queenmq.core.maintenance import Switch
from queenmq.core.message import Message
from queenmq.core.options import ConfigureRights, OptionValues, QueueOptions
from queenmq.core.push_call import Outcome
from queenmq.journal.shared import JournalSharing
from queenmq.operations.queue import OperationQueue
from queenmq.storage.database import Database

_PROBE_GRACE_S = 5.0


class Broker:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        node: Node,
        clock: Clock = SYSTEM,
        journal: JournalSharing | None = None,
    ) -> None:
        self.settings = settings
        self.node = node
        self.database = database
        cluster: Cluster = node if node.linked else Alone()
        self.vitals = Vitals(clock)
        self.activity = Activity(clock)
        self.statistics = Statistics(
            database,
            self.activity,
            settings.statistics,
            node.server_id,
            clock,
            most_known=settings.limits.max_items,
            at_once=settings.retention.batch_size,
        )
        self.caches = Caches(cache_bounds_of(settings), clock, cluster)
        self._options = KnownOptions(database, self.caches, clock, cached=settings.cache.enabled)
        self.encryption = PayloadEncryption(settings.server.encryption_keys, self._options)
        self.maintenance = Maintenance(database, self.caches, clock)
        self.schemas = Schemas(database, clock)
        self.load = LoadWatch(database, settings.overload, settings.database.pool_size, clock)
        lock_s, most = settings.database.lock_timeout_ms / 1000, settings.limits.max_lock_waiters
        self.locks = LockWait(database, lock_s, most, clock, names_holders=not settings.auth.required)
        self.journal = journal_of(settings, journal, clock)
        self.long_polls: LongPolls[Delivered] = LongPolls(
            backoff_of(settings, self._options),
            cluster,
            clock,
            max_waiters=settings.limits.max_waiters,
            check_limit_s=settings.database.statement_timeout_ms / 1000 + _PROBE_GRACE_S,
            ready=partitions_ready(database, cluster),
        )
        targets = Targets(database, self.caches, self._options, clock, cached=settings.cache.enabled)
        renewing = policy_of(settings, settings.lanes.renew_lease)
        self._leases = Leases(database, renewing, self.long_polls, locks=self.locks)
        parts = Parts(database, self.activity, self.long_polls, self.locks)
        self._pusher = Pusher(
            parts,
            encryption=self.encryption,
            targets=targets,
            maintenance=self.maintenance,
            policy=policy_of(settings, settings.lanes.push),
            concurrency=concurrency_of(settings.concurrency),
            load=self.load,
            journal=self.journal,
            wait_behind_s=settings.journal.wait_ms / 1000,
        )
        self.check_pushes, self.check_forwarded_pushes = self._pusher.check_switched_on, self._pusher.check_forwarded
        self.conditional_pusher = ConditionalPusher(
            parts,
            policy_of(settings, settings.lanes.push),
            encryption=self.encryption,
            targets=targets,
            maintenance=self.maintenance,
            load=self.load,
            journal=self.journal,
            wait_behind_s=settings.journal.wait_ms / 1000,
        )
        self._popper = Popper(
            parts,
            settings,
            encryption=self.encryption,
            leases=self._leases,
            queues=self._options,
            maintenance=self.maintenance,
            cluster=cluster,
            clock=clock,
            policy=policy_of(settings, settings.lanes.pop),
            concurrency=concurrency_of(settings.concurrency),
        )
        self.keys = Keys(database)
        self.filters, self.conflation = Filters(database, self.long_polls.wake), self._popper.conflation
        self.pauses = Pauses(database, self._popper.pauses, self._options.publish, self.long_polls.wake)
        self.policies = Policies(database, self._popper, self._options.publish, self.long_polls.wake_unlimited)
        acking = policy_of(settings, settings.lanes.ack)
        self._acker = Acker(parts, acking, concurrency_of(settings.concurrency))
        self._finisher = Finisher(parts, self._popper, acking, concurrency_of(settings.concurrency))
        accepted = AcceptedPush(parts, self.encryption, self._options, self.load, self.maintenance, self.journal)
        self.timers = Timers(accepted, self.encryption, self._options, clock)
        unmerged = self._unmerged("transactions", targets)
        self._transactor = Transactor(parts, self.encryption, targets, unmerged, self.timers)
        self._streams = Streams(parts, self.encryption, targets, self._unmerged("stream cycles", targets))
        self.outbox = Outbox(accepted, clock)
        self.operations = OperationQueue(database)
        self.operation_runner = OperationRunner(
            database,
            self.caches,
            settings.operations,
            clock,
            load=self.load,
            activity=self.activity,
            readable=self.long_polls.wake,
            server_id=node.server_id,
        )
        self._administration = Administration(
            database,
            self._options,
            self.operation_runner,
            settings.server.worker_id,
            self.activity,
            changed=self.long_polls.wake,
        )
        pushing = (self._pusher.lane, self._pusher.queue_lane, self.conditional_pusher.lane)
        consuming = (self._popper.lane, self._acker.lane, self._finisher.lane, self._leases.lane)
        self.lanes: dict[str, Lane[Any, Any]] = {lane.name: lane for lane in (*pushing, *consuming)}
        self.live = Live()
        self.consumers: set[InFlight] = set()  # one for each consumer connection

    def _unmerged(self, name: str, targets: Targets) -> Unmerged:
        return Unmerged(
            name,
            policy_of(self.settings, self.settings.lanes.transaction),
            encryption=self.encryption,
            targets=targets,
            maintenance=self.maintenance,
            locks=self.locks,
            journal=self.journal,
            wait_behind_s=self.settings.journal.wait_ms / 1000,
        )

    # The verbs

    def push(self, messages: list[Message]) -> Awaitable[list[Outcome]]:
        """Store `messages`; the outcomes are in their order. When this returns, they are committed or journalled."""
        return self._pusher.push(messages)

    def push_unless_journalled(self, messages: list[Message]) -> Awaitable[list[Outcome]]:
        """The same for a push that another server has forwarded. Raises WouldJournal instead of journalling it."""
        return self._pusher.push_unless_journalled(messages)

    def store_accepted(self, requests: list[list[Message]], lock_timeout: str) -> Awaitable[list[list[Outcome]]]:
        """Store pushes that were accepted before, also if their queues are full. Raises RowLocked if a row is held."""
        return self._pusher.store_accepted(requests, lock_timeout)

    def pop(self, claim: Claim, wait_ms: int = 0) -> Awaitable[Delivered]:
        """Claim messages of one queue; with `wait_ms`, hold until there are some or the time is over."""
        return self._popper.pop(claim, wait_ms)

    def pop_matching(self, which: Filter, claim: Claim, wait_ms: int = 0) -> Awaitable[Delivered]:
        """The same over every queue that matches; `claim.queue` is filled in by the queue that delivers."""
        return self._popper.pop_matching(which, claim, wait_ms)

    def ack(self, runs: list[Run]) -> Awaitable[list[Acked]]:
        """Apply the acknowledgements of one request; a result for each message, in their order."""
        return self._acker.ack(runs)

    def finish(self, finish: Finish) -> Awaitable[Finished]:
        """Acknowledge everything that a lease has delivered and that is not finished, with exceptions."""
        return self._finisher.finish(finish)

    def take(self, finish: Finish, claim: Claim, wait_ms: int = 0) -> Awaitable[Taken]:
        """Finish a lease, then pop, in one call. Only the pop waits. Neither half is undone if the other fails."""
        return self._finisher.take(finish, claim, wait_ms)

    def take_now(self, finish: Finish, claim: Claim) -> Awaitable[Taken]:
        """The same without waiting, for callers that are not cancelled."""
        return self._finisher.take_now(finish, claim)

    def renew(self, lease_id: str, seconds: int) -> Awaitable[datetime | None]:
        """The new expiry, or None if the lease is not live. Never shortens it."""
        return self._leases.renew(lease_id, seconds)

    def give_back(self, *leases: tuple[str, str]) -> None:
        """Free leases, each given with its queue, in the background; if that fails, their expiry does it."""
        self._leases.release_soon(*leases)

    def transact(self, transaction: Transaction) -> Awaitable[Committed]:
        """Apply all of it. Raises TransactionRefused with the reason if nothing was applied."""
        return self._transactor.commit(transaction)

    def committed_before(self, transaction: Transaction) -> Awaitable[Committed | None]:
        """What an earlier try of the same transaction, with the same ids, has done; None if there is no trace of it."""
        return self._transactor.committed_before(transaction)

    def register_query(
        self, name: str, source: str, sink: str | None, config_hash: str, reset: bool
    ) -> Awaitable[Query]:
        """Make a stream query or find it again; with `mismatch`, it has another configuration and was left alone."""
        return self._streams.register(name, source, sink, config_hash, reset)

    def stream_state(
        self,
        query_id: str,
        partition_id: str,
        keys: list[str],
        prefix: str | None,
        ripe_at: float | None,
        *,
        limit: int,
        max_bytes: int,
    ) -> Awaitable[list[StateEntry]]:
        """The state of a stream query in a partition. Raises TooLarge for more than `max_bytes`."""
        return self._streams.state(query_id, partition_id, keys, prefix, ripe_at, limit=limit, max_bytes=max_bytes)

    def stream_cycle(self, cycle: Cycle) -> Awaitable[Cycled]:
        """Push, change state and acknowledge as one. Raises TransactionRefused if nothing was applied."""
        return self._streams.cycle(cycle)

    # The verbs for queues, groups and single messages

    def configure(
        self, queue: str, labels: Labels, options: QueueOptions, rights: ConfigureRights, given: Set[str] | None = None
    ) -> Awaitable[Configured]:
        """Create or reconfigure a queue: the options that are `given`, or all. Raises Forbidden as `rights` say."""
        return self._administration.configure(queue, labels, options, rights, given)

    def delete_queue(self, queue: str) -> Awaitable[tuple[bool, OperationProgress]]:
        """Delete a queue with everything of it; False if there was none. What is left of it cannot be reached."""
        return self._administration.delete_queue(queue)

    def clear(self, queue: str, partition: str | None) -> Awaitable[OperationProgress | None]:
        """Delete every message of a queue or partition that is there now. None if there is no such queue."""
        return self._administration.clear(queue, partition)

    def seek(self, group: str, queue: str, partition: str | None, at: datetime | None) -> Awaitable[OperationProgress]:
        """Move a group behind `at`, or to the end if it is None, in a queue or a partition of it."""
        return self._administration.seek(group, queue, partition, at)

    def resubscribe(self, group: str, since: datetime) -> Awaitable[int]:
        """Change where a group starts in partitions without a position. Returns the subscriptions changed."""
        return self._administration.resubscribe(group, since)

    def delete_group(self, group: str, queue: str | None, with_metadata: bool) -> Awaitable[int]:
        """Forget the positions of a group; with metadata, also where it starts. Returns the partitions forgotten."""
        return self._administration.delete_group(group, queue, with_metadata)

    def redrive(self, which: Redrive) -> Awaitable[OperationProgress | None]:
        """Have dead letters that are there now delivered again, in order. None if there is no such queue."""
        return self._administration.redrive(which)

    def purge(self, which: Purge) -> Awaitable[tuple[int, bool]]:
        """Forget dead letters. Returns how many, and whether there may be more."""
        return self._administration.purge(which)

    def delete_message(self, partition_id: str, transaction_id: str) -> Awaitable[bool]:
        """Delete a message with its dead letters and traces; False if there is none."""
        return self._administration.delete_message(partition_id, transaction_id)

    def retry_message(self, partition_id: str, transaction_id: str) -> Awaitable[bool]:
        """Take a message out of the dead letters and have it delivered again; False if it is no dead letter."""
        return self._administration.retry_message(partition_id, transaction_id)

    def bury_message(self, partition_id: str, transaction_id: str) -> Awaitable[bool]:
        """Put a message to the dead letters of every group that has not finished it; False if it is not stored."""
        return self._administration.bury_message(partition_id, transaction_id)

    def add_trace(self, trace: Trace) -> Awaitable[str | None]:
        """Record a trace; its id, or None if there is no such message."""
        return self._administration.add_trace(trace)

    def database_answers(self) -> Awaitable[bool]:
        """Whether the database answers a question now."""
        return self._administration.database_answers()

    async def set_maintenance(self, switch: Switch, on: bool) -> None:
        """When this returns, the switch is stored, this server follows it, and the others have been notified."""
        await self.maintenance.set(switch, on)
        self._popper.pause_changed()

    async def refresh(self) -> None:
        """Read from the database what other servers also send, so that lost or wrong messages do no harm for long."""
        await self.schemas.refresh()
        if await self.maintenance.refresh():
            self._popper.pause_changed()
        await self._options.refresh()
        await self._popper.subscriptions.resume()
        self.caches.expire()
        await self.policies.fairness.refresh()

    def written_elsewhere(self, queue: str) -> None:
        """Messages were written by no server. Every server is notified of them by the database."""
        self.locks.nudge(queue)
        self.activity.touched.add(queue)
        self.long_polls.wake_here(queue)

    # What other servers say (queenmq.cluster.port.Receiver)

    def receive_readable(self, queue: str, partitions: Collection[str] | None) -> None:
        self.long_polls.wake_here(queue, partitions)

    def receive_config(self, queue: str, options: OptionValues, version: int) -> None:
        self.caches.receive_config(queue, options, version)
        self.policies.fairness.changed_elsewhere(queue, options.get("fair_separator"))
        if self._popper.pauses.forget(queue):
            self.long_polls.wake_here(queue)

    def receive_deletion(self, queue: str, version: int) -> None:
        self.caches.receive_deletion(queue, version)

    def receive_partition_deletion(self, queue: str, partition: str) -> None:
        self.caches.receive_partition_deletion(queue, partition)

    def receive_maintenance(self, switch: Switch, on: bool, version: int) -> None:
        if self.caches.receive_maintenance(switch, on, version):
            self._popper.pause_changed()

    def requests(self) -> tuple[int, int]:
        """How many long polls are parked, and how many requests wait for the database."""
        return self.long_polls.registry.total, sum(lane.outstanding for lane in self.lanes.values())

    @property
    def pops_are_paused(self) -> bool:
        """Whether the maintenance switch for pops is on."""
        return self.maintenance.is_on(Switch.POP)

    def shared_state(self) -> dict[str, object]:
        """What this server knows of the others, its caches, and how busy it is; every counter."""
        return {
            **self.node.statistics(),
            **self.caches.statistics(),
            "sidecar": {"registered": 1, "operations": {name: figures_of(lane) for name, lane in self.lanes.items()}},
            "pop_wait": {**self.long_polls.registry.statistics(), "parked": self.long_polls.registry.parked()},
            "database_calls": self.database.calls,
        }

    def end_long_polls(self) -> None:
        """Answer every waiting long poll now, refuse who waits for a locked row, and end every live stream."""
        self._popper.close()
        self.locks.end()
        self.live.close()

    async def close(self) -> None:
        """Finish what was submitted. The HTTP front has stopped before."""
        self.end_long_polls()
        await self.operation_runner.close()
        await self.statistics.close()
        await self._popper.subscriptions.close()
        for lane in self.lanes.values():
            await lane.close()
        await self._leases.close()
        await self.locks.close()
        if self.journal is not None:
            await self.journal.close()
