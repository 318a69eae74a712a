-- Limits of each key of a queue (see 0041): how many leases its partitions may have at once, and how many messages it gets in a second. Servers of the
-- version before do not know of it and go on.
ALTER TABLE queen.limits ADD COLUMN key_leases integer, ADD COLUMN key_rate double precision, ADD COLUMN key_burst double precision;

-- What is used of the limit of a key; a key without a row has used nothing. The arrays are parallel: partitions that were leased to groups, of which those
-- count that are leased still. Each change makes a new generation, so that the newest version is found first. No foreign key: it would lock the queue's row.
CREATE TABLE queen.limit_keys (
    queue_id        uuid NOT NULL,
    scope           text COLLATE "C" NOT NULL,      -- the group whose limit it is; empty: the queue's
    key             text COLLATE "C" NOT NULL,
    generation      bigint NOT NULL,
    partitions      uuid[] NOT NULL,
    groups          text[] NOT NULL,
    tokens          double precision,               -- those that were left at refilled_at; null: there is no rate
    refilled_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue_id, scope, key, generation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);
