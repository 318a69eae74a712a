-- maxSize without counting at every push.

-- What a queue with maxSize holds at most: counted at some time, and everything added since then. What was read since then is not taken
-- off, so it is never too small. Only written under the lock of the queue's row. A queue that has no row here is counted at its next push.
CREATE TABLE queen.queue_sizes (
    queue_id    uuid PRIMARY KEY,
    size        bigint NOT NULL,
    partitions  bigint NOT NULL,                        -- how many were counted: what counting again costs
    counted_at  timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- What has been added to a queue without the lock of its row: `added` messages, or an unknown number (null: count again).
-- Only inserted, so that nobody waits for it: the next push takes it into account. No foreign key: its check would lock the queue's row.
CREATE TABLE queen.queue_size_changes (
    queue_id  uuid NOT NULL,
    added     bigint
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE INDEX queue_size_changes_queue ON queen.queue_size_changes (queue_id);
