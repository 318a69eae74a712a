-- Queues whose partitions have keys, made of their names, among which deliveries are shared out. Servers of the version before do not know of it
-- and deliver what has waited longest.
CREATE TABLE queen.fairness (
    queue_id    uuid PRIMARY KEY REFERENCES queen.queues (id) ON DELETE CASCADE,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by  text,
    given       text,                       -- as it was given, in JSON; null: it was taken back, and keys are still to be removed
    filled      boolean NOT NULL            -- all rows of partition_consumers have their key
);

-- So that who makes a row of partition_consumers gives it its key. Null: there are none.
ALTER TABLE queen.queues ADD COLUMN fair_separator text;

-- What the name of the partition has before the separator. It is advice: a row without it is delivered like any other, only not in its turn.
ALTER TABLE queen.partition_consumers ADD COLUMN fair_key text COLLATE "C";
CREATE INDEX CONCURRENTLY partition_consumers_fair ON queen.partition_consumers (queue_id, consumer_group, fair_key, ready_at)
    WHERE fair_key IS NOT NULL AND ready_at IS NOT NULL;
