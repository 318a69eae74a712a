-- The tables as first laid out: the head of a partition is kept in its own row.

CREATE TABLE queen.queues (
    id                      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name                    text COLLATE "C" NOT NULL UNIQUE,
    namespace               text COLLATE "C" NOT NULL DEFAULT '',
    task                    text COLLATE "C" NOT NULL DEFAULT '',
    lease_time_s            integer NOT NULL DEFAULT 300,
    retry_limit             integer NOT NULL DEFAULT 3,
    retry_delay_ms          integer NOT NULL DEFAULT 1000,
    max_size                bigint  NOT NULL DEFAULT 0,
    ttl_s                   integer,            -- null: not asked for, messages do not expire
    dead_letter_queue       boolean NOT NULL DEFAULT false,
    dlq_after_max_retries   boolean NOT NULL DEFAULT false,
    priority                integer NOT NULL DEFAULT 0,
    delayed_processing_s    integer NOT NULL DEFAULT 0,
    window_buffer_s         integer NOT NULL DEFAULT 0,
    retention_s             integer NOT NULL DEFAULT 0,
    completed_retention_s   integer NOT NULL DEFAULT 0,
    retention_enabled       boolean NOT NULL DEFAULT false,
    encryption_enabled      boolean NOT NULL DEFAULT false,
    max_wait_time_s         integer NOT NULL DEFAULT 0,
    created_at              timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX queues_namespace_task ON queen.queues (namespace, task);

CREATE TABLE queen.partitions (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_id     uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    name         text COLLATE "C" NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_offset  bigint NOT NULL DEFAULT 0,
    UNIQUE (queue_id, name)
) WITH (fillfactor = 70);

-- No foreign key to partitions: it would cost more per message than the row itself. A trigger on partitions
-- deletes the messages with their partition, and one on messages refuses rows of unknown partitions.
CREATE TABLE queen.messages (
    partition_id    uuid NOT NULL,
    "offset"        bigint NOT NULL,
    id              uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_encrypted    boolean NOT NULL DEFAULT false,
    transaction_id  text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
    trace_id        uuid,
    producer_sub    text,
    payload         bytea NOT NULL DEFAULT 'null',
    PRIMARY KEY (partition_id, "offset"),
    CONSTRAINT messages_transaction UNIQUE (partition_id, transaction_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);
COMMENT ON COLUMN queen.messages.payload IS
    'The JSON text as it was pushed, UTF-8. convert_from(payload, ''UTF8'')::json reads it.';

-- A group that has popped from a queue, or that has said where it wants to start. `registered` means that it
-- has a row in partition_consumers for every partition, and gets one for each new partition.
CREATE TABLE queen.consumer_groups (
    queue_name  text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    mode        text NOT NULL DEFAULT 'all',
    since       timestamptz,
    registered  boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue_name, name)
);
CREATE INDEX consumer_groups_name ON queen.consumer_groups (name);

-- The same for a group that subscribed through the partition form of pop.
CREATE TABLE queen.partition_subscriptions (
    queue_name      text COLLATE "C" NOT NULL,
    partition_name  text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    mode            text NOT NULL,
    since           timestamptz NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue_name, partition_name, name)
);
CREATE INDEX partition_subscriptions_name ON queen.partition_subscriptions (name);

-- Where a group stands in a partition.
CREATE TABLE queen.partition_consumers (
    partition_id      uuid NOT NULL REFERENCES queen.partitions (id) ON DELETE CASCADE,
    consumer_group    text COLLATE "C" NOT NULL,
    queue_id          uuid NOT NULL,
    position          bigint NOT NULL DEFAULT 0,     -- every message up to here is finished
    done              int8multirange NOT NULL DEFAULT '{}',   -- finished beyond the position
    ready_at          timestamptz,                   -- when a pop may claim it; null: nothing unread
    lease_id          uuid,
    lease_expires_at  timestamptz,
    lease_offsets     int8multirange,                -- delivered under the lease and not finished
    attempts          integer NOT NULL DEFAULT 0,
    retry_at          timestamptz,                   -- end of the pause after a failure
    total_consumed    bigint NOT NULL DEFAULT 0,
    last_consumed_at  timestamptz,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition_id, consumer_group)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX partition_consumers_ready ON queen.partition_consumers (queue_id, consumer_group, ready_at);
CREATE INDEX partition_consumers_lease ON queen.partition_consumers (lease_id) WHERE lease_id IS NOT NULL;

-- Dead letters are copies: they stay when retention removes the message.
CREATE TABLE queen.dead_letter_queue (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_id        uuid NOT NULL,
    partition_id    uuid NOT NULL,
    partition_name  text COLLATE "C" NOT NULL,
    consumer_group  text COLLATE "C" NOT NULL,
    message_id      uuid NOT NULL,
    transaction_id  text COLLATE "C" NOT NULL,
    "offset"        bigint NOT NULL,
    trace_id        uuid,
    producer_sub    text,
    is_encrypted    boolean NOT NULL,
    payload         bytea NOT NULL,
    error_message   text NOT NULL,
    retry_count     integer NOT NULL,
    created_at      timestamptz NOT NULL,
    failed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (partition_id, consumer_group, message_id)
);
CREATE INDEX dead_letter_queue_failed ON queen.dead_letter_queue (queue_id, failed_at DESC);
CREATE INDEX dead_letter_queue_all ON queen.dead_letter_queue (failed_at DESC);

CREATE TABLE queen.message_traces (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_id        uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    partition_id    uuid NOT NULL,
    transaction_id  text COLLATE "C" NOT NULL,
    consumer_group  text,
    event_type      text NOT NULL,
    data            bytea NOT NULL,
    worker_id       text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX message_traces_message ON queen.message_traces (partition_id, transaction_id, created_at);
CREATE INDEX message_traces_queue ON queen.message_traces (queue_id);

CREATE TABLE queen.message_trace_names (
    trace_id    uuid NOT NULL REFERENCES queen.message_traces (id) ON DELETE CASCADE,
    name        text COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (trace_id, name)
);
CREATE INDEX message_trace_names_name ON queen.message_trace_names (name, created_at DESC);
