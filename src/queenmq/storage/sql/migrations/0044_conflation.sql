-- Groups that get only the newest message of each partition. Servers of the version before do not know of it and deliver all.
CREATE TABLE queen.conflating_groups (
    queue_id        uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group  text COLLATE "C" NOT NULL,
    set_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    set_by          text,
    PRIMARY KEY (queue_id, consumer_group)
);

-- So that a pop, which reads this row in any case, asks for conflation only where there is some.
ALTER TABLE queen.queues ADD COLUMN has_conflation boolean NOT NULL DEFAULT false;

-- How many messages of a partition a group was not given because there were newer ones.
ALTER TABLE queen.filtered ADD COLUMN conflated bigint NOT NULL DEFAULT 0;
