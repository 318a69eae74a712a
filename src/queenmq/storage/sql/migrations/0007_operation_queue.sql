-- Work that was accepted and is done later: pushes under load, and long administration.
-- Within a partition operations are done in the order of `number`, which is drawn under the lock of the partition's head. Administration of
-- a queue (every other kind) is done in that order, too; there it is drawn under queen.administer.

CREATE TABLE queen.operation_queue (
    id                uuid PRIMARY KEY,
    number            bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    kind              text COLLATE "C" NOT NULL,
    queue_name        text COLLATE "C",                -- null: of all queues
    partition_name    text COLLATE "C",
    partition_id      uuid REFERENCES queen.partitions (id) ON DELETE CASCADE,
    priority          integer NOT NULL DEFAULT 5,      -- 1 is done first
    status            text COLLATE "C" NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'processing', 'completed', 'failed', 'cancelled')),
    -- The messages of a push, payloads as they are to be stored.
    message_ids       uuid[],
    transaction_ids   text[],
    trace_ids         uuid[],
    payloads          bytea[],
    encrypted         boolean[],
    producers         text[],
    size_bytes        bigint NOT NULL DEFAULT 0,       -- about what it takes in memory to run it
    -- Administration: on which queue, what is asked for, and how far it is. What was there at created_at is meant.
    queue_id          uuid,
    parameters        jsonb,
    cursor            jsonb,
    done              bigint NOT NULL DEFAULT 0,
    total             bigint,
    worker            text COLLATE "C",
    claim             uuid,                            -- who runs it now: a run without the live claim changes nothing
    claimed_at        timestamptz,
    timeout_s         integer NOT NULL DEFAULT 30,     -- a claim that is older may be taken over
    attempts          integer NOT NULL DEFAULT 0,
    max_attempts      integer NOT NULL DEFAULT 3,
    error             text,
    failed_at         timestamptz,
    result            jsonb,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at       timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX operation_queue_open ON queen.operation_queue (partition_id, number)
    WHERE status IN ('pending', 'processing');
CREATE INDEX operation_queue_next ON queen.operation_queue (priority, number)
    WHERE kind = 'push' AND status IN ('pending', 'processing');
CREATE INDEX operation_queue_finished ON queen.operation_queue (finished_at)
    WHERE status IN ('completed', 'failed', 'cancelled');
-- Failed ones are counted at every scrape, among all the completed ones.
CREATE INDEX operation_queue_failed ON queen.operation_queue (number) WHERE status = 'failed';
CREATE INDEX operation_queue_partition ON queen.operation_queue (partition_id);
CREATE INDEX operation_queue_queue ON queen.operation_queue (queue_name, number);
CREATE INDEX operation_queue_administration ON queen.operation_queue (queue_id, number)
    WHERE kind <> 'push' AND status IN ('pending', 'processing');
CREATE UNIQUE INDEX operation_queue_retention ON queen.operation_queue (kind)
    WHERE kind = 'retention' AND status IN ('pending', 'processing');

-- A queue without a name is deleted: its rows are being removed, and nobody finds them by its name.
ALTER TABLE queen.queues ALTER COLUMN name DROP NOT NULL;

-- Dead letters go back in the order of their offsets.
CREATE INDEX dead_letter_queue_place ON queen.dead_letter_queue (queue_id, partition_id, "offset");
