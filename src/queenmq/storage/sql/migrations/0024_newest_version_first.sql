-- Heads and positions that are found at once, also when old versions of their rows cannot be removed because somebody holds the horizon.

-- Every push makes a new version of a head. A lookup by partition_id alone visits all versions that are still there, the oldest first. With
-- `generation` in the index the newest come first, and a reader that says ORDER BY generation DESC LIMIT 1 stops there. It is the last
-- offset divided by 16 and not the offset itself: as long as no indexed column changes, PostgreSQL writes no index and can remove old versions
-- without VACUUM. Rows that are there get theirs at the next push.
ALTER TABLE queen.partition_lookup ADD COLUMN generation bigint NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX CONCURRENTLY partition_lookup_newest ON queen.partition_lookup (partition_id, generation);

-- Each change of a group's row in a partition makes a new generation.
ALTER TABLE queen.partition_consumers ADD COLUMN generation bigint NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX CONCURRENTLY partition_consumers_newest ON queen.partition_consumers (partition_id, consumer_group, generation);

-- The groups that a push has to wake: those that sleep. A group falls asleep only when it has read everything, so its position is at least
-- the last offset before the push, and older versions of the row lie before that in the index.
CREATE INDEX CONCURRENTLY partition_consumers_asleep
    ON queen.partition_consumers (partition_id, position, consumer_group) WHERE ready_at IS NULL;

-- Whether there are such queues at all: a push and an ack have to do more for them.
CREATE INDEX CONCURRENTLY queues_delayed ON queen.queues (id) WHERE delayed_processing_s + window_buffer_s > 0;

-- A VACUUM that finds empty pages at the end of a table cuts them off under ACCESS EXCLUSIVE: every push, pop and ack waits for it, and on a
-- standby it ends queries. These tables are small, or empty again and again, and grow back in the next second. It stays on for messages and
-- dead letters, where it gives the disk back what retention has deleted.
ALTER TABLE queen.partition_lookup SET (vacuum_truncate = off);
ALTER TABLE queen.partition_consumers SET (vacuum_truncate = off);
ALTER TABLE queen.partition_ages SET (vacuum_truncate = off);
ALTER TABLE queen.queue_sizes SET (vacuum_truncate = off);
ALTER TABLE queen.queue_size_changes SET (vacuum_truncate = off);
ALTER TABLE queen.operation_queue SET (vacuum_truncate = off);
