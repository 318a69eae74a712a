-- Which messages a group gets of a queue: those for which `path` is true. Servers of the version before do not know of it and deliver all.
CREATE TABLE queen.group_filters (
    queue_id        uuid NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group  text COLLATE "C" NOT NULL,
    filter          text NOT NULL,              -- as it was written
    path            jsonpath NOT NULL,          -- over {"headers": …, "payload": …}
    reads_payload   boolean NOT NULL,
    set_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    set_by          text,
    PRIMARY KEY (queue_id, consumer_group)
);
-- How many messages of a partition a filter has kept from a group.
CREATE TABLE queen.filtered (
    partition_id    uuid NOT NULL REFERENCES queen.partitions (id) ON DELETE CASCADE,
    consumer_group  text COLLATE "C" NOT NULL,
    queue_id        uuid NOT NULL,
    messages        bigint NOT NULL,
    PRIMARY KEY (partition_id, consumer_group)
) WITH (fillfactor = 50);
CREATE INDEX filtered_queue ON queen.filtered (queue_id, consumer_group);

-- So that a pop, which reads this row in any case, asks for filters only where there are some.
ALTER TABLE queen.queues ADD COLUMN has_filters boolean NOT NULL DEFAULT false;
