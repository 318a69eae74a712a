-- What people have paused: a queue, a group of it, or one partition of a group. Servers of the version before do not know of it and go on.
CREATE TABLE queen.pauses (
    queue_id        uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group  text COLLATE "C" NOT NULL,      -- empty: every group
    partition_name  text COLLATE "C" NOT NULL,      -- empty: every partition
    paused_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by       text,
    reason          text,
    PRIMARY KEY (queue_id, consumer_group, partition_name)
);

-- So that a pop, which reads this row in any case, asks for pauses only where there are some.
ALTER TABLE queen.queues ADD COLUMN has_pauses boolean NOT NULL DEFAULT false;
