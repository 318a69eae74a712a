-- How many leases a queue, or a group of it, may have at once, and how many messages it gets in a second. Servers of the version before do not
-- know of it and go on.
CREATE TABLE queen.limits (
    queue_id        uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group  text COLLATE "C" NOT NULL,      -- empty: all groups together
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      text,
    given           text NOT NULL,                  -- as it was given, in JSON
    leases          integer,                        -- at once; null: as many as there are partitions
    rate            double precision,               -- messages a second; null: no limit
    burst           double precision,               -- messages at once, after a pause
    shards          integer NOT NULL,               -- rows of limit_tokens
    PRIMARY KEY (queue_id, consumer_group)
);

-- A place for each lease that a limit allows. It is free if the lease that it was given to does not live any more. No foreign key: it would lock
-- the queue's row. Each change makes a new generation, so that the newest version is found first.
CREATE TABLE queen.limit_slots (
    queue_id        uuid NOT NULL,
    scope           text COLLATE "C" NOT NULL,      -- the group whose limit it is; empty: the queue's
    slot            integer NOT NULL,               -- from 0
    generation      bigint NOT NULL DEFAULT 0,
    lease_id        uuid,
    partition_id    uuid,
    consumer_group  text COLLATE "C",
    PRIMARY KEY (queue_id, scope, slot, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);

-- Parts of the token buckets of limits: `tokens` were left at `refilled_at`.
CREATE TABLE queen.limit_tokens (
    queue_id        uuid NOT NULL,
    scope           text COLLATE "C" NOT NULL,
    shard           integer NOT NULL,               -- from 0
    generation      bigint NOT NULL DEFAULT 0,
    tokens          double precision NOT NULL,
    refilled_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue_id, scope, shard, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);

-- So that a pop, which reads this row in any case, asks for limits only where there are some.
ALTER TABLE queen.queues ADD COLUMN has_limits boolean NOT NULL DEFAULT false;
