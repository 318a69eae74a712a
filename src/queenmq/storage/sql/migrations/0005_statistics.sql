-- What administration asks for, kept beside the messages so that no answer has to count them.

-- Offsets between the first and the last of a partition whose message was deleted by hand.
ALTER TABLE queen.partition_lookup ADD COLUMN holes bigint NOT NULL DEFAULT 0;

-- The statistics of a queue as of reckoned_at (see queries/statistics). A queue without a row has not been measured yet.
CREATE TABLE queen.queue_statistics (
    queue_id         uuid PRIMARY KEY REFERENCES queen.queues (id) ON DELETE CASCADE,
    partitions       bigint NOT NULL,
    total            bigint NOT NULL,       -- stored
    pending          bigint NOT NULL,       -- of these, neither finished nor leased by the slowest group of their partition
    processing       bigint NOT NULL,       -- under a live lease of that group
    failed           bigint NOT NULL,       -- groups of partitions whose next delivery is a repetition
    consumed         bigint NOT NULL,       -- deliveries finished since the groups exist
    leases           bigint NOT NULL,       -- partitions of groups under a live lease
    dead_letters     bigint NOT NULL,
    last_message_at  timestamptz,
    reckoned_at      timestamptz NOT NULL,
    cost_ms          double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE queen.group_statistics (
    queue_id          uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group    text COLLATE "C" NOT NULL,
    partitions        bigint NOT NULL,
    lagging           bigint NOT NULL,      -- partitions with something unread
    lag               bigint NOT NULL,      -- messages unread
    leases            bigint NOT NULL,
    leased            bigint NOT NULL,      -- messages under them
    consumed          bigint NOT NULL,
    oldest_unread_at  timestamptz,
    last_consumed_at  timestamptz,
    PRIMARY KEY (queue_id, consumer_group)
) WITH (fillfactor = 50);
CREATE INDEX group_statistics_group ON queen.group_statistics (consumer_group);

-- The partitions of each group that wait longest: a bounded number of them.
CREATE TABLE queen.lagging_partitions (
    queue_id          uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group    text COLLATE "C" NOT NULL,
    partition_id      uuid NOT NULL,
    oldest_unread_at  timestamptz NOT NULL,
    PRIMARY KEY (queue_id, consumer_group, partition_id)
);
CREATE INDEX lagging_partitions_oldest ON queen.lagging_partitions (oldest_unread_at);

-- The partitions of each queue that were written last: a bounded number of them.
CREATE TABLE queen.recent_partitions (
    queue_id         uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    partition_id     uuid NOT NULL,
    last_message_at  timestamptz NOT NULL,
    PRIMARY KEY (queue_id, partition_id)
);
CREATE INDEX recent_partitions_newest ON queen.recent_partitions (last_message_at DESC);

-- How many dead letters each group of a partition has; exact, by triggers on dead_letter_queue.
CREATE TABLE queen.dead_letter_counts (
    partition_id    uuid NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    queue_id        uuid NOT NULL,
    letters         bigint NOT NULL,
    PRIMARY KEY (partition_id, consumer_group)
) WITH (fillfactor = 50);
CREATE INDEX dead_letter_counts_queue ON queen.dead_letter_counts (queue_id, consumer_group) INCLUDE (letters);

INSERT INTO queen.dead_letter_counts (partition_id, consumer_group, queue_id, letters)
SELECT partition_id, consumer_group, min(queue_id::text)::uuid, count(*)
FROM queen.dead_letter_queue GROUP BY partition_id, consumer_group;

-- What servers did, by minute and queue; the empty name stands for all queues together.
CREATE TABLE queen.activity (
    queue_name     text COLLATE "C" NOT NULL,
    bucket         timestamptz NOT NULL,
    server         text COLLATE "C" NOT NULL,
    push_requests  bigint NOT NULL DEFAULT 0,
    push_messages  bigint NOT NULL DEFAULT 0,
    pop_requests   bigint NOT NULL DEFAULT 0,
    pop_messages   bigint NOT NULL DEFAULT 0,
    pop_empty      bigint NOT NULL DEFAULT 0,
    ack_requests   bigint NOT NULL DEFAULT 0,
    ack_success    bigint NOT NULL DEFAULT 0,
    ack_failed     bigint NOT NULL DEFAULT 0,
    dead_lettered  bigint NOT NULL DEFAULT 0,
    transactions   bigint NOT NULL DEFAULT 0,
    retained       bigint NOT NULL DEFAULT 0,     -- deleted by retention and ttl
    evicted        bigint NOT NULL DEFAULT 0,
    db_errors      bigint NOT NULL DEFAULT 0,
    lag_count      bigint NOT NULL DEFAULT 0,     -- deliveries that were measured
    lag_sum_ms     double precision NOT NULL DEFAULT 0,
    lag_max_ms     double precision NOT NULL DEFAULT 0,
    parked         integer NOT NULL DEFAULT 0,    -- long polls, when last measured
    PRIMARY KEY (queue_name, bucket, server)
) WITH (fillfactor = 70);
CREATE INDEX activity_bucket ON queen.activity (bucket);

-- How a server was, a row for each METRICS_AGGREGATE_INTERVAL_S: each figure as {avg, min, max, last}.
CREATE TABLE queen.server_samples (
    bucket     timestamptz NOT NULL,
    server     text COLLATE "C" NOT NULL,
    hostname   text NOT NULL,
    port       integer NOT NULL,
    worker_id  text NOT NULL,
    pid        integer NOT NULL,
    samples    integer NOT NULL,
    figures    jsonb NOT NULL,
    PRIMARY KEY (server, bucket)
);

CREATE INDEX dead_letter_queue_message ON queen.dead_letter_queue (partition_id, transaction_id);
