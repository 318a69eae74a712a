"""What the server answers to the calls of `queen.admin`, for type checkers: answers are plain dicts and lists.

Made from the server's OpenAPI document by tests/unit/test_client_answers.py; do not edit. A field that is
`NotRequired` is left out of some answers. A server of a newer version may send more.
"""

from typing import Any, Literal, NotRequired, TypedDict


class AuditEntry(TypedDict):
    """`count` requests from `at` to `until`: more than one only if they were refused. `detail` is the body, cut to
    2,000 characters. `forwardedFor` is what the request says, and proves nothing.
    """

    id: int
    at: str
    until: str
    count: int
    subject: str | None
    role: str | None
    tokenId: str | None
    action: str
    target: str | None
    detail: str | None
    address: str | None
    forwardedFor: str | None
    status: int
    error: str | None
    operationId: str | None
    server: str


class Page(TypedDict):
    limit: int
    offset: int


class AuditPage(TypedDict):
    entries: list[AuditEntry]
    pagination: Page


class BalancedRoutes(TypedDict):
    """The consumer routes of the server that answers, and how often it has chosen or changed one."""

    routes: int
    assigned: int
    migrated: int
    broken: int
    gathered: int


class BalancedServer(TypedDict):
    """One server. `load_score` is about 1 when it has as much to do as it should; the figures are averages."""

    server_id: str
    url: str
    load_score: float
    healthy: bool
    local: bool
    parked_polls: float
    outstanding_requests: float
    cpu_percent: float
    circuit: Literal["closed", "half_open", "open"]


class Balance(TypedDict):
    """How evenly the servers are loaded. `imbalance_score` is the distance between the busiest and the idlest."""

    balanced: bool
    imbalance_score: float
    coordinator_enabled: bool
    forwarded: int
    fallbacks: int
    affinity: BalancedRoutes
    servers: list[BalancedServer]


class Progress(TypedDict):
    """How far an operation is, in `unit`; the total is null if nobody can say it before the end."""

    done: int
    total: int | None
    unit: str


class Cleared(TypedDict):
    status: NotRequired[Literal["queued", "running"]]
    operationId: NotRequired[str]
    progress: NotRequired[Progress]
    cleared: bool
    queue: str
    partition: str | None
    deleted: int


class ConflationShown(TypedDict):
    """`enabled`: the group gets only the newest message of each partition. `passedOver` counts the older ones."""

    queue: str
    consumerGroup: str
    enabled: bool
    setAt: str | None
    setBy: str | None
    passedOver: int


class ConsumerListed(TypedDict):
    """A consumer that has popped not long ago (`lastPopAt`), known since `since`. `leases` counts those that it holds,
    the oldest since `oldestLeaseAt`; `partitions` names ten of them.
    """

    name: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None
    consumerGroup: str
    since: str
    lastPopAt: str
    leases: int
    oldestLeaseAt: str | None
    partitions: list[str]


class ConsumersListed(TypedDict):
    queue: str
    consumers: list[ConsumerListed]


class DeadLetter(TypedDict):
    id: str
    transactionId: str
    partitionId: str
    queue: str
    partition: str
    consumerGroup: str
    errorMessage: str
    retryCount: int
    data: Any
    undecryptable: bool
    producerSub: str | None
    headers: NotRequired[dict[str, str]]
    createdAt: str
    failedAt: str
    omitted: NotRequired[bool]


class LettersOfQueue(TypedDict):
    name: str
    total: int


class DeadLetters(TypedDict):
    """`queues`, where they were asked for, says in which queues they are, the most first."""

    messages: list[DeadLetter]
    pagination: Page
    total: int
    queues: NotRequired[list[LettersOfQueue]]


class ConsumerShown(TypedDict):
    """A consumer, as it calls itself: its name, host and process. `address` is where its connection comes from, unless
    another server has forwarded it, `subject` that of its token.
    """

    name: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None


class AttemptShown(TypedDict):
    """A delivery that failed. `outcome` is what the consumer said (`failed`, `retry`, `dlq`), or `expired`: its lease
    ended without a word. `consumer` is null if it is not known any more.
    """

    consumerGroup: str
    outcome: Literal["dlq", "expired", "failed", "retry"]
    error: str | None
    leasedAt: str | None
    endedAt: str
    consumer: ConsumerShown | None


class ExplainedPlace(TypedDict):
    """What a group would get from a partition, and what keeps it from getting it. `unread` is stored and not finished,
    `ready` what a pop gets now; `started`: the group has popped here before. `queuedPushes` wait in the operation
    queue, `journalledPushes` in the journal of this server. `heldBy` is the consumer that has the lease, since
    `leasedAt`; `lastAttempt` is how the message at the head failed last.
    """

    partition: str
    partitionId: str
    started: bool
    reason: Literal[
        "backpressure",
        "delayed",
        "deliverable",
        "end_reached",
        "exhausted",
        "expired",
        "filtered",
        "group_never_started",
        "leased",
        "limited",
        "parked",
        "partition_unknown",
        "paused",
        "queue_unknown",
        "retry_pause",
        "window_open",
    ]
    state: str
    explanation: str
    advice: str
    until: str | None
    position: int
    lastOffset: int
    unread: int
    ready: int
    attempts: int
    attemptsLeft: int
    leaseId: str | None
    leaseExpiresAt: str | None
    leased: int
    leasedAt: str | None
    heldBy: ConsumerShown | None
    lastAttempt: AttemptShown | None
    nextTransactionId: str | None
    nextMessageAt: str | None
    lastConsumedAt: str | None
    queuedPushes: int
    journalledPushes: int


class Explained(TypedDict):
    """The reason, in a word (`state`), a sentence about it and one that says what to do. `deliverable`: a pop of this
    group that says nothing else gets something now. `until` is when it ends by itself, if it does;
    `waiters` are the long polls of the queue on this server, `deadLetters` what the group has given up, `passedOver`
    what it was not given because of a filter or conflation. The partitions are those that come next.
    """

    queue: str
    partition: str | None
    consumerGroup: str
    groups: list[str]
    deliverable: bool
    reason: Literal[
        "backpressure",
        "delayed",
        "deliverable",
        "end_reached",
        "exhausted",
        "expired",
        "filtered",
        "group_never_started",
        "leased",
        "limited",
        "parked",
        "partition_unknown",
        "paused",
        "queue_unknown",
        "retry_pause",
        "window_open",
    ]
    state: str
    explanation: str
    advice: str
    until: str | None
    paused: bool
    waiters: int
    queuedPushes: int
    journalledPushes: int
    deadLetters: int
    filter: str | None
    conflation: bool
    passedOver: int
    partitions: list[ExplainedPlace]


class FilterShown(TypedDict):
    """`filter` is null if the group gets everything. `passedOver` counts what filters have kept from the group."""

    queue: str
    consumerGroup: str
    filter: str | None
    setAt: str | None
    setBy: str | None
    passedOver: int


class FoundGroup(TypedDict):
    """A group, and a queue that it reads."""

    name: str
    queue: str


class FoundMessage(TypedDict):
    """A message that is stored, and what it was found by."""

    queue: str
    partition: str
    partitionId: str
    transactionId: str
    createdAt: str
    byHeader: bool


class FoundPartition(TypedDict):
    id: str
    name: str
    queue: str


class FoundQueue(TypedDict):
    name: str
    namespace: str


class Found(TypedDict):
    """What was found, the nearest first. `complete` is false if there may be messages that were not examined: see
    `queen db index`.
    """

    queues: list[FoundQueue]
    groups: list[FoundGroup]
    partitions: list[FoundPartition]
    messages: list[FoundMessage]
    complete: bool


class GroupDeleted(TypedDict):
    success: bool
    consumerGroup: str
    queueName: NotRequired[str]
    deletedPartitions: int
    metadataDeleted: bool


class GroupPartition(TypedDict):
    """`unread` is stored and not finished; `offsetLag` those of them that are due, the first for `timeLagSeconds`.
    `reason` and `state` are those of explain; `started`: the group has popped here before.
    """

    partition: str
    started: bool
    reason: Literal[
        "backpressure",
        "delayed",
        "deliverable",
        "end_reached",
        "exhausted",
        "expired",
        "filtered",
        "group_never_started",
        "leased",
        "limited",
        "parked",
        "partition_unknown",
        "paused",
        "queue_unknown",
        "retry_pause",
        "window_open",
    ]
    state: str
    unread: int
    workerId: str | None
    lastConsumedAt: str | None
    totalConsumed: int
    offsetLag: int
    timeLagSeconds: int
    leaseActive: bool


class GroupInQueue(TypedDict):
    partitions: list[GroupPartition]


class GroupListed(TypedDict):
    """One group in one queue. `unread` is stored and not finished by it; `totalLag` those of them that are due, in
    `partitionsWithLag` partitions, the first of them for `maxTimeLag` seconds. `members` are the leases that it holds;
    `reading`: it holds one, has finished something in the last minute, or a long poll of it waits at this server.
    `failing` partitions have a head that failed; `consumed` counts the deliveries that it has finished, and
    `finishedPerSecond` is their rate, over half a minute or more; null until it has been measured for so long. It
    started at `subscriptionTimestamp`; null: with the first message. `total` entries are on all pages of the
    listing.
    """

    name: str
    topics: list[str]
    queueName: str
    members: int
    partitionsWithLag: int
    totalLag: int | None
    maxTimeLag: int
    state: Literal["Dead", "Lagging", "Stable"]
    unread: int | None
    reading: bool
    standing: Literal["Behind", "Idle", "Paused", "Queue is gone", "Reading", "Up to date", "Waiting"]
    failing: int
    deadLetters: int
    total: int
    consumed: int
    finishedPerSecond: float | None
    subscriptionMode: str | None
    subscriptionTimestamp: str | None
    subscriptionCreatedAt: str | None


class HealthJournal(TypedDict):
    """Messages that it holds, pushes that cannot be stored for now, that need another key, and that were set aside."""

    messages: int
    stuck: int
    waiting_for_key: int
    quarantined: int


class SharedState(TypedDict):
    enabled: bool


class Worker(TypedDict):
    status: Literal["active", "degraded"]
    worker_id: int


class Health(TypedDict):
    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    worker_id: str
    version: str
    timestamp: str
    shared_state: SharedState
    queen: Worker
    journal: HealthJournal | None


class KeyNamespace(TypedDict):
    """`keys` is exact up to a hundred; `more`: there may be more than that."""

    namespace: str
    keys: int
    more: bool


class KeyNamespaces(TypedDict):
    """By name. `nextAfter` is where to go on, null at the end; a page may have fewer than `limit`."""

    namespaces: list[KeyNamespace]
    nextAfter: str | None


class LaggingPartition(TypedDict):
    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    offset_lag: int
    unread: int
    time_lag_seconds: int
    lag_hours: float
    oldest_unconsumed_at: str
    last_consumed_at: str | None


class ExceptedResult(TypedDict):
    """What became of one exception."""

    index: int
    transactionId: str
    success: bool
    error: str | None
    dlq: bool


class PoppedMessage(TypedDict):
    """One message as it is delivered."""

    id: str
    transactionId: str
    traceId: str | None
    data: Any
    producerSub: str | None
    createdAt: str
    partitionId: str
    partition: str
    offset: int
    leaseId: str
    consumerGroup: str
    queue: str
    retryCount: int
    headers: NotRequired[dict[str, str]]
    traceparent: NotRequired[str]


class Popped(TypedDict):
    """The messages; each names its own partition. `leaseId` is empty with `autoAck`. A pop that asks for conflation has
    one of the last two fields, and an answer also if there are no messages.
    """

    success: bool
    queue: str | None
    partition: str | None
    partitionId: str | None
    leaseId: str | None
    consumerGroup: str
    partitionsClaimed: int
    messages: list[PoppedMessage]
    conflation: NotRequired[bool]
    conflationConflict: NotRequired[bool]


class LeaseFinished(TypedDict):
    """`taken` and `takeError` are there if something was to be taken."""

    leaseId: str
    success: bool
    error: str | None
    messages: int
    dlq: int
    code: NotRequired[str]
    taken: NotRequired[Popped | None]
    takeError: NotRequired[str | None]


class LockSeen(TypedDict):
    """Who has a permit. Its fencing number is not shown: with it, anybody could end what others hold."""

    slot: int
    owner: str | None
    since: str | None
    expiresAt: str
    renewedAt: str


class LockListed(TypedDict):
    """The first ten that hold it."""

    name: str
    holders: list[LockSeen]


class LocksListed(TypedDict):
    """By name. `nextAfter` is where to go on, null at the end; a page may have fewer than `limit`."""

    locks: list[LockListed]
    nextAfter: str | None


class MaintenanceMoved(TypedDict):
    maintenanceMode: bool
    bufferedMessages: int
    bufferHealthy: bool
    message: str


class FailedFiles(TypedDict):
    count: int
    totalBytes: int
    totalMB: float
    failoverCount: int
    qos0Count: int


class BufferStats(TypedDict):
    pendingCount: int
    failedCount: int
    dbHealthy: bool
    failedFiles: FailedFiles


class MaintenanceState(TypedDict):
    maintenanceMode: bool
    popMaintenanceMode: bool
    bufferedMessages: int
    bufferHealthy: bool
    bufferStats: BufferStats


class MessageConfig(TypedDict):
    leaseTime: int
    retryLimit: int
    retryDelay: int
    ttl: int
    priority: int


class MessageGroup(TypedDict):
    """`attempts`: how often the message has failed for this group, as explain says of the head, and the last time
    included. `consumed`: the group has passed the message, which may then be a dead letter: `status` says so.
    """

    name: str
    consumed: bool
    status: Literal["completed", "dead_letter", "pending", "processing"]
    attempts: int
    leaseExpiresAt: str | None


class MessageMode(TypedDict):
    hasQueueMode: bool
    busGroupsCount: int
    consumedByGroups: int
    type: Literal["bus", "hybrid", "none", "queue"]


class MessageDescribed(TypedDict):
    """One message with its payload as it was pushed; null, and `undecryptable`, if the key is not here. `retryCount` is
    how often it has failed, for the group for which it failed most; `attempts` are the last ten failures of each group,
    newest first.
    """

    id: str
    transactionId: str
    partitionId: str
    queuePath: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: Literal["completed", "dead_letter", "pending", "processing"]
    payload: Any
    isEncrypted: bool
    undecryptable: bool
    traceId: str | None
    producerSub: str | None
    headers: NotRequired[dict[str, str]]
    createdAt: str
    errorMessage: str | None
    retryCount: int
    leaseExpiresAt: str | None
    queueConfig: MessageConfig
    mode: MessageMode
    consumerGroups: list[MessageGroup]
    attempts: list[AttemptShown]


class MessageDone(TypedDict):
    success: bool
    partitionId: str
    transactionId: str
    message: str


class ListingMode(TypedDict):
    hasQueueMode: bool
    busGroupsCount: int
    type: Literal["bus", "hybrid", "none", "queue"]


class BusStatus(TypedDict):
    """How many of the named groups of its partition have finished a message."""

    consumedBy: int
    totalGroups: int


class MessageListed(TypedDict):
    id: str
    transactionId: str
    partitionId: str
    queuePath: str
    queue: str
    partition: str
    namespace: str
    task: str
    status: Literal["completed", "dead_letter", "pending", "processing"]
    queueStatus: Literal["completed", "dead_letter", "pending", "processing"]
    busStatus: BusStatus
    traceId: str | None
    producerSub: str | None
    headers: NotRequired[dict[str, str]]
    queuePriority: int
    createdAt: str
    leaseExpiresAt: str | None
    payload: NotRequired[Any]
    omitted: NotRequired[bool]


class MessagesListed(TypedDict):
    messages: list[MessageListed]
    mode: ListingMode


class NamedTrace(TypedDict):
    id: str
    event_type: str
    data: Any
    consumer_group: str | None
    worker_id: str | None
    created_at: str
    trace_names: list[str]
    omitted: NotRequired[bool]
    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: Any


class NamedTraces(TypedDict):
    """`total` is counted up to a bound."""

    traces: list[NamedTrace]
    total: int
    pagination: Page


class Backlog(TypedDict):
    total: int
    pending: int


class NamespaceListed(TypedDict):
    namespace: str
    queues: int
    partitions: int
    messages: Backlog


class NamespacesListed(TypedDict):
    namespaces: list[NamespaceListed]


class OperationMoved(TypedDict):
    """`message` says how far a cancelled stepped operation came, or where in its partition a retried push is stored."""

    operationId: str
    status: Literal["blocked", "cancelled", "completed", "failed", "pending", "processing"]
    message: str | None


class OperationState(TypedDict):
    """An operation. The result of a push has one element per message; `queuePosition` is how many are
    done before it, null unless it waits; `latencySeconds` is from its beginning to its end, or until now.

    After a failure `errorMessage` says why and `nextAttemptAt` when it is tried again; what comes after it in its
    partition waits meanwhile. `blocked`: its content is the cause, and it waits until somebody retries or cancels it.
    A stepped operation has a progress, and as its result the answer that its request would have got.
    """

    id: str
    operationType: str
    status: Literal["blocked", "cancelled", "completed", "failed", "pending", "processing"]
    queue: str | None
    partition: str | None
    priority: int
    items: int
    createdAt: str | None
    processingStartedAt: str | None
    processedAt: str | None
    retryCount: int
    errorMessage: str | None
    nextAttemptAt: str | None
    queuePosition: int | None
    latencySeconds: float | None
    estimatedWait: float | None
    progress: Progress | None
    result: Any | None
    subject: NotRequired[str]
    omitted: NotRequired[bool]


class OperationPage(TypedDict):
    """`total` is how many match, counted up to 100,000."""

    operations: list[OperationState]
    pagination: Page
    total: int


class JournalState(TypedDict):
    operations: int
    messages: int
    bytes: int
    replayedMessages: int
    syncs: int
    damaged: int
    tornBytes: int
    healthy: bool
    quarantined: int
    stuck: int
    waitingForKey: int
    replayFailing: bool


class LoadState(TypedDict):
    poolUtilization: float
    poolWaiting: int
    pushWaitSeconds: float
    eventLoopDelaySeconds: float
    queueDepth: int
    drainRate: float
    executed: int
    queued: int
    rejected: int


class OperationDepth(TypedDict):
    queue: str | None
    partition: str | None
    operations: int
    oldestSeconds: float


class OperationTotals(TypedDict):
    operationType: str
    priority: int
    status: Literal["blocked", "cancelled", "completed", "failed", "pending", "processing"]
    count: int
    oldest: str
    newest: str
    avgLatencySeconds: float


class OperationStats(TypedDict):
    """`depth` has the partitions with the most open operations."""

    stats: list[OperationTotals]
    depth: list[OperationDepth]
    systemHealth: LoadState
    journal: JournalState | None


class Spread(TypedDict):
    avg: float
    median: float
    min: float
    max: float


class Lag(TypedDict):
    """Over the groups that have something unread: seconds, and messages."""

    time: Spread
    offset: Spread


class Messages(TypedDict):
    """`pending` and `processing` are those of the slowest group, so that they add up to `total` with `completed`."""

    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    deadLetter: int


class Throughput(TypedDict):
    ingestedPerSecond: float
    processedPerSecond: float


class Overview(TypedDict):
    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: Messages
    lag: Lag
    throughput: Throughput
    timestamp: str
    statsAge: float


class PartitionGroup(TypedDict):
    """Where a group stands in a partition: the last offset that it has finished, and the lease that it holds. `unread`,
    `ready`, `reason`, `state`, `heldBy` and `lastAttempt` are those of explain; `nextTransactionId` is the message at
    the head. For `timeLagSeconds` something has been due; null if nothing is.
    """

    name: str
    reason: Literal[
        "backpressure",
        "delayed",
        "deliverable",
        "end_reached",
        "exhausted",
        "expired",
        "filtered",
        "group_never_started",
        "leased",
        "limited",
        "parked",
        "partition_unknown",
        "paused",
        "queue_unknown",
        "retry_pause",
        "window_open",
    ]
    state: str
    position: int
    unread: int
    ready: int
    timeLagSeconds: int | None
    nextTransactionId: str | None
    leaseId: str | None
    leaseExpiresAt: str | None
    leased: int
    leasedAt: str | None
    heldBy: ConsumerShown | None
    attempts: int
    lastAttempt: AttemptShown | None
    retryAt: str | None
    lastConsumedAt: str | None


class PartitionHead(TypedDict):
    """A partition from its first stored offset to its last, with its groups, the one that is furthest behind first."""

    id: str
    name: str
    createdAt: str
    firstOffset: int
    lastOffset: int
    stored: int
    deadLetters: int
    oldestMessageAt: str | None
    lastMessageAt: str | None
    groupCount: int
    groups: list[PartitionGroup]


class PartitionHeads(TypedDict):
    queue: str
    partitions: list[PartitionHead]
    pagination: Page


class PartitionSought(TypedDict):
    """`cursorMovedTo` is the offset of the last message that counts as read; null if the group has no place there, or
    is not moved yet (202).
    """

    status: NotRequired[Literal["queued", "running"]]
    operationId: NotRequired[str]
    progress: NotRequired[Progress]
    success: bool
    consumerGroup: str
    queueName: str
    partitionName: str
    updated: bool
    cursorMovedTo: int | None


class Depth(TypedDict):
    total: int
    pending: int
    processing: int


class PartitionListed(TypedDict):
    id: str
    name: str
    queue: str
    createdAt: str
    messages: Depth


class PartitionsListed(TypedDict):
    partitions: list[PartitionListed]


class PauseMade(TypedDict):
    """`changed` is false if it was paused before."""

    queue: str
    consumerGroup: str | None
    partition: str | None
    pausedAt: str
    pausedBy: str | None
    reason: str | None
    probeAt: str | None
    changed: bool


class PauseListed(TypedDict):
    """Without a group, of all groups; without a partition, of all partitions. `probeAt` is when the breaker that has
    paused a group lets the next batch through.
    """

    queue: str
    consumerGroup: str | None
    partition: str | None
    pausedAt: str
    pausedBy: str | None
    reason: str | None
    probeAt: str | None


class PausesListed(TypedDict):
    pauses: list[PauseListed]


class BreakerPolicy(TypedDict):
    """When more than `failures` of the last `of` messages of a group have failed, the group is paused. After
    `pauseSeconds` one batch is let through: if it is completed, the pause ends, and if it fails, it begins again.
    """

    failures: int
    of: int
    pauseSeconds: int


class FairnessPolicy(TypedDict):
    """The key of a partition is what its name has before the `separator`, or all of it. A key with the weight 2 gets
    twice as much as one without a weight, while both have messages.
    """

    separator: str
    weights: dict[str, float]


class KeyLimits(TypedDict):
    """The same for each key. Keys are those of the fairness of the queue: the beginnings of names of partitions."""

    leases: int | None
    rate: float | None
    burst: int | None


class LimitPolicy(TypedDict):
    """`leases` is how many leases may be open at once; `rate` how many messages are delivered a second, and `burst` how
    many at once after a pause (a second's worth unless it is given).
    """

    leases: int | None
    rate: float | None
    burst: int | None
    perKey: KeyLimits | None


class RetryPolicy(TypedDict):
    """`fixed` waits `delayMs`; `exponential` waits `delayMs`, then `factor` times as long after each failure, up to
    `maxDelayMs`; `list` waits what `delaysMs` says, and the last of it from then on. Without a strategy, the queue's
    `retryDelay`. `jitter` is the part by which a delay may be shorter at random (exponential: 0.5 unless it is given).
    `limit` is how often a message may fail before it is given up (else the queue's `retryLimit`). `poison` says what
    the partition does: `block`, `skip` or `park`.
    """

    strategy: Literal["exponential", "fixed", "list"] | None
    delayMs: int | None
    factor: float | None
    maxDelayMs: int | None
    delaysMs: list[int] | None
    jitter: float | None
    limit: int | None
    poison: Literal["block", "park", "skip"]


class PolicyListed(TypedDict):
    """Without a group, for all groups that have none of their own; the limits are for all groups together."""

    queue: str
    consumerGroup: str | None
    changedAt: str
    changedBy: str | None
    retry: RetryPolicy | None
    breaker: BreakerPolicy | None
    limits: LimitPolicy | None
    fairness: FairnessPolicy | None


class PoliciesListed(TypedDict):
    policies: list[PolicyListed]


class PolicySet(TypedDict):
    """The parts that were set. `changed` is false if it was so before."""

    queue: str
    consumerGroup: str | None
    retry: NotRequired[RetryPolicy | None]
    breaker: NotRequired[BreakerPolicy | None]
    limits: NotRequired[LimitPolicy | None]
    fairness: NotRequired[FairnessPolicy | None]
    changed: bool


class PopMaintenance(TypedDict):
    popMaintenanceMode: bool
    message: str


class Purged(TypedDict):
    """One step. `more`: there may be others that failed until `to`; the next step names the same moment."""

    purged: int
    to: str
    more: bool


class PartitionDepth(TypedDict):
    partition: str
    pending: int


class QueueDepth(TypedDict):
    """`pending` counts messages that are not finished, in `partitionsPending` partitions. `effectivePending` is how
    many of them are left to deliver: one for each partition if the group conflates. The partitions are those with
    most.
    """

    queue: str
    group: str | None
    pending: int
    partitionsPending: int
    conflation: bool
    effectivePending: int
    partitions: list[PartitionDepth]


class PartitionDescribed(TypedDict):
    id: str
    name: str
    createdAt: str
    stats: Messages
    oldestMessage: str | None
    newestMessage: str | None


class QueueDescribed(TypedDict):
    """The partitions by name, as many as `limit` allows; `totals` is about all of them."""

    id: str
    name: str
    namespace: str
    task: str
    createdAt: str
    partitions: list[PartitionDescribed]
    totals: Messages


class Cursor(TypedDict):
    """Of all groups together. Batches are not counted, so they are null."""

    totalConsumed: int
    batchesConsumed: int | None


class PartitionStatus(TypedDict):
    id: str
    name: str
    createdAt: str
    messages: Messages
    stats: Messages
    cursor: Cursor
    lastActivity: str | None
    oldestMessage: str | None
    newestMessage: str | None


class QueueConfig(TypedDict):
    leaseTime: int
    retryLimit: int
    retryDelay: int
    ttl: int
    maxQueueSize: int
    deadLetterQueue: bool


class QueueOptions(TypedDict):
    """The options. Every one left out returns to its default; without those of `popWait…`, the settings of the server
    count.
    """

    leaseTime: int
    maxSize: int
    ttl: int | None
    retryLimit: int
    retryDelay: int
    deadLetterQueue: bool
    dlqAfterMaxRetries: bool
    priority: int
    delayedProcessing: int
    windowBuffer: int
    retentionSeconds: int
    completedRetentionSeconds: int
    retentionEnabled: bool
    encryptionEnabled: bool
    maxWaitTimeSeconds: int
    archiveBeforeDelete: bool
    setAsideFailedPushes: bool
    popWaitBaseIntervalMs: int | None
    popWaitMaxIntervalMs: int | None
    popWaitBackoffThreshold: int | None
    popWaitBackoffMultiplier: float | None


class QueueStatus(TypedDict):
    """`options` are all of them as configure takes them: `ttl` is null where none is enforced."""

    id: str
    name: str
    namespace: str
    task: str
    priority: int
    createdAt: str
    config: QueueConfig
    options: QueueOptions


class Totals(TypedDict):
    total: int
    pending: int
    processing: int
    completed: int
    failed: int
    deadLetter: int
    messages: Messages


class QueueStatusDetail(TypedDict):
    queue: QueueStatus
    partitions: list[PartitionStatus]
    totals: Totals


class QueueListed(TypedDict):
    """`failing` counts the groups in partitions whose head has failed, `leases` what all groups hold; `lagSeconds` is
    how long the oldest unread message has been due. Rates are of the last whole minute.
    """

    id: str
    name: str
    namespace: str
    task: str
    createdAt: str
    partitions: int
    messages: Depth
    failing: int
    deadLetters: int
    leases: int
    lagSeconds: int
    pushedPerSecond: float
    poppedPerSecond: float


class QueuesListed(TypedDict):
    queues: list[QueueListed]


class QueuesPage(TypedDict):
    queues: list[QueueListed]
    pagination: Page


class QuotaRemoved(TypedDict):
    removed: bool
    namespace: str


class QuotaShown(TypedDict):
    """What is stored is some seconds old; `bytes` is estimated from a sample, and only there if it has a limit.
    `longPollsWaiting` are those at the worker that answers, if they have a limit.
    """

    namespace: str
    maxMessages: int | None
    maxBytes: int | None
    messages: int
    bytes: NotRequired[int]
    requestsPerSecond: int | None
    messagesPerSecond: int | None
    longPolls: int | None
    longPollsWaiting: NotRequired[int]


class QuotasListed(TypedDict):
    quotas: list[QuotaShown]


class Redriven(TypedDict):
    """`redriven` is the number of dead letters that were taken."""

    status: NotRequired[Literal["queued", "running"]]
    operationId: NotRequired[str]
    progress: NotRequired[Progress]
    success: bool
    queue: str
    partition: str | None
    consumerGroup: str | None
    redriven: int


class Refreshed(TypedDict):
    """How many were updated, by step; or `skipped` with the reason, and nothing else."""

    partition: NotRequired[int]
    queue: NotRequired[int]
    namespace: NotRequired[int]
    task: NotRequired[int]
    system: NotRequired[int]
    cleanup: NotRequired[int]
    skipped: NotRequired[bool]
    reason: NotRequired[str]


class Resumed(TypedDict):
    queue: str
    consumerGroup: str | None
    partition: str | None
    changed: bool


class CheckResult(TypedDict):
    index: int
    fits: bool
    error: str | None


class SchemaChecked(TypedDict):
    """`incompatible`: why the schema of the request may not follow the newest; null if it may, or if there is none."""

    queue: str
    version: int | None
    incompatible: str | None
    results: list[CheckResult]


class VersionShown(TypedDict):
    version: int
    createdAt: str
    createdBy: str | None


class SchemaFound(TypedDict):
    queue: str
    version: int
    newest: int
    compatibility: str
    check: bool
    createdAt: str
    createdBy: str | None
    schema: Any
    versions: list[VersionShown]


class SchemaRemoved(TypedDict):
    queue: str
    removed: bool


class SchemaSetAnswer(TypedDict):
    queue: str
    version: int
    compatibility: str
    check: bool
    changed: bool


class SchemaShown(TypedDict):
    queue: str
    version: int
    compatibility: str
    check: bool
    changedAt: str


class SchemasListed(TypedDict):
    schemas: list[SchemaShown]
    nextAfter: str | None


class SeekEffect(TypedDict):
    """What a seek would do now: `deliveredAgain` messages that the group has finished, `skipped` that it has not.
    `more`: there are more partitions, and this is about the first of them.
    """

    consumerGroup: str
    queueName: str
    partitionName: str | None
    partitions: int
    deliveredAgain: int
    skipped: int
    more: bool


class SkippedShown(TypedDict):
    """It is delivered again at `until`. `parked`: it is not, and everything behind it waits, until it is retried, made
    a dead letter or deleted.
    """

    partition: str
    partitionId: str
    consumerGroup: str
    offset: int
    transactionId: str
    createdAt: str
    until: str | None
    parked: bool
    retryCount: int


class SkippedListed(TypedDict):
    messages: list[SkippedShown]


class Sought(TypedDict):
    """A group that was moved in a queue."""

    status: NotRequired[Literal["queued", "running"]]
    operationId: NotRequired[str]
    progress: NotRequired[Progress]
    success: bool
    consumerGroup: str
    queueName: str
    seekToEnd: bool
    targetTimestamp: str | None
    partitionsUpdated: int


class SubscriptionMoved(TypedDict):
    success: bool
    consumerGroup: str
    newTimestamp: str
    rowsUpdated: int


class TaskListed(TypedDict):
    task: str
    queues: int
    partitions: int
    messages: Backlog


class TasksListed(TypedDict):
    tasks: list[TaskListed]


class Grant(TypedDict):
    """Patterns are names in which `*` stands for any characters. A namespace stands for the queue of that name and all
    whose names begin with it and a dot: the name of a queue cannot be changed, its namespace can. Without queues and
    namespaces a grant is for every queue, without groups for every group, without verbs for all of the role's.
    A list that is given is not empty, as that would read as if it allowed nothing.
    """

    queues: list[str]
    namespaces: list[str]
    groups: list[str]
    allow: list[Literal["ack", "administer", "pop", "push", "read"]]


class Limits(TypedDict):
    """What a token may do at most, each if given: requests and pushed messages a second, long polls at a time."""

    requestsPerSecond: int | None
    messagesPerSecond: int | None
    longPolls: int | None


class TokenCreated(TypedDict):
    """`token` is shown only now."""

    id: str
    name: str
    role: Literal["admin", "read-only", "read-write"]
    grants: list[Grant]
    limits: Limits
    valid: bool
    createdAt: str
    createdBy: str | None
    expiresAt: str | None
    revokedAt: str | None
    lastUsedAt: str | None
    token: str


class TokenShown(TypedDict):
    """`lastUsedAt` may be an hour old. Of the token itself only a digest is stored."""

    id: str
    name: str
    role: Literal["admin", "read-only", "read-write"]
    grants: list[Grant]
    limits: Limits
    valid: bool
    createdAt: str
    createdBy: str | None
    expiresAt: str | None
    revokedAt: str | None
    lastUsedAt: str | None


class TokensListed(TypedDict):
    tokens: list[TokenShown]
    pagination: Page


class TraceName(TypedDict):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNames(TypedDict):
    """Everything is counted up to a bound."""

    trace_names: list[TraceName]
    total: int
    pagination: Page


class TraceShown(TypedDict):
    id: str
    event_type: str
    data: Any
    consumer_group: str | None
    worker_id: str | None
    created_at: str
    trace_names: list[str]
    omitted: NotRequired[bool]


class TracesShown(TypedDict):
    traces: list[TraceShown]


class TroubleShown(TypedDict):
    """`sentence` names the cause, `advice` says what to do, `statement` is SQL for an administrator of the database.
    `reason` is why a group is behind, as explain calls it; `fingerprint` is for `GET /api/v1/dlq`.
    """

    kind: Literal["behind", "dead_letters", "failing", "full", "gathering", "horizon", "paused", "token_expired"]
    sentence: str
    advice: str
    reason: Literal[
        "backpressure",
        "delayed",
        "deliverable",
        "end_reached",
        "exhausted",
        "expired",
        "filtered",
        "group_never_started",
        "leased",
        "limited",
        "parked",
        "partition_unknown",
        "paused",
        "queue_unknown",
        "retry_pause",
        "window_open",
        None,
    ]
    queue: str | None
    partition: str | None
    consumerGroup: str | None
    fingerprint: str | None
    statement: str | None


class TroublesListed(TypedDict):
    troubles: list[TroubleShown]
