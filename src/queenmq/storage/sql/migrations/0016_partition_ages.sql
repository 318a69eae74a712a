-- Retention, eviction and the removal of idle partitions find what they have to do without reading every partition.

-- How old the contents of a partition are, one row each. `oldest_at` is never later than the time of its oldest message, null while it is
-- empty; `idle_since` is then not later than when it was last written to, else null. `unread_at` is never later than the time of the oldest
-- message that some group has not finished, `infinity` if eviction found everything read; it is kept right only in queues with
-- maxWaitTimeSeconds. `kept_at` is when retention last examined a partition and had to leave what was old enough: a group has not read it, or
-- no lake has archived it. No foreign keys: their checks would cost more than the row (see queen.on_partitions_delete).
CREATE TABLE queen.partition_ages (
    partition_id  uuid PRIMARY KEY,
    queue_id      uuid NOT NULL,
    oldest_at     timestamptz,
    unread_at     timestamptz,
    idle_since    timestamptz,
    kept_at       timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

INSERT INTO queen.partition_ages (partition_id, queue_id, oldest_at, unread_at, idle_since)
SELECT l.partition_id, l.queue_id, a.at, a.at,
       CASE WHEN a.at IS NULL THEN greatest(l.last_message_at, p.created_at) END
FROM queen.partition_lookup l
JOIN queen.partitions p ON p.id = l.partition_id
LEFT JOIN LATERAL (
    SELECT CASE WHEN l.first_offset <= l.last_offset THEN coalesce((
        SELECT m.created_at FROM queen.messages m
        WHERE m.partition_id = l.partition_id AND m."offset" >= l.first_offset ORDER BY m."offset" LIMIT 1), l.last_message_at) END AS at
) a ON true;

CREATE INDEX partition_ages_oldest ON queen.partition_ages (queue_id, oldest_at, partition_id) WHERE oldest_at IS NOT NULL;
CREATE INDEX partition_ages_unkept ON queen.partition_ages (queue_id, oldest_at, partition_id) WHERE oldest_at IS NOT NULL AND kept_at IS NULL;
CREATE INDEX partition_ages_kept ON queen.partition_ages (queue_id, kept_at) WHERE kept_at IS NOT NULL;
CREATE INDEX partition_ages_unread ON queen.partition_ages (queue_id, unread_at, partition_id) WHERE unread_at IS NOT NULL;
CREATE INDEX partition_ages_idle ON queen.partition_ages (idle_since) WHERE idle_since IS NOT NULL;

-- A push asks whether there is any such queue, eviction which.
CREATE INDEX queues_max_wait ON queen.queues (id) WHERE max_wait_time_s > 0;

-- While a group is given its rows in steps (see queen.subscribe): it has one in every partition up to this one, and in some others. Null
-- before and after. Until then it is not `registered`.
ALTER TABLE queen.consumer_groups ADD COLUMN placed_upto uuid;
CREATE INDEX consumer_groups_unplaced ON queen.consumer_groups (queue_name, name) WHERE placed_upto IS NOT NULL;
