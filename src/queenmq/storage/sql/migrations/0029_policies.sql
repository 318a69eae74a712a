-- What a queue, or a group of it, does with messages that fail. Servers of the version before do not know of it and go on with retryDelay.
CREATE TABLE queen.policies (
    queue_id         uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group   text COLLATE "C" NOT NULL,     -- empty: every group that has none of its own
    changed_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by       text,
    retry            text,                          -- as it was given, in JSON; null: this policy says nothing about retries
    retry_limit      integer,                       -- null: that of the queue
    retry_delays_ms  bigint[],                      -- after the first failure of a message, after the second, …; the last one for all others. Null: that of the queue
    retry_jitter     double precision NOT NULL DEFAULT 0,   -- by which part a delay may be shorter
    poison           text NOT NULL DEFAULT 'block', -- or `skip`, or `park`
    PRIMARY KEY (queue_id, consumer_group)
);

-- So that a pop or an ack, which reads this row in any case, asks for policies only where there are some.
ALTER TABLE queen.queues ADD COLUMN has_policies boolean NOT NULL DEFAULT false;

-- Messages that failed and are not delivered before a moment, while others of the partition are. Null while there are none. What is finished is
-- said by `position` and `done` alone: this only keeps back. With `parks` it is the message that everything behind it waits for.
CREATE TYPE queen.skipped AS (until timestamptz, offsets int8multirange, parks boolean);
ALTER TABLE queen.partition_consumers ADD COLUMN skipped queen.skipped[];
CREATE INDEX CONCURRENTLY partition_consumers_skipped ON queen.partition_consumers (partition_id) WHERE skipped IS NOT NULL;
