-- Move a group within a queue, or within one partition of it: behind the newest message (p_at null), or behind the
-- last message that is not younger than p_at. Ends leases and forgets attempts. Returns the partitions moved.
-- Locks: rows of partition_consumers by (partition, group); then what queen.settle takes, without waiting.
CREATE OR REPLACE FUNCTION queen.seek(p_group text, p_queue text, p_partition text, p_at timestamptz)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_rows uuid[];
BEGIN
    SELECT array_agg(x.partition_id) INTO v_rows FROM (
        SELECT c.partition_id FROM queen.partition_consumers c
        JOIN queen.queues q ON q.id = c.queue_id AND q.name = p_queue
        JOIN queen.partitions p ON p.id = c.partition_id AND (p_partition IS NULL OR p.name = p_partition)
        WHERE c.consumer_group = p_group
        ORDER BY c.partition_id FOR NO KEY UPDATE OF c
    ) x;
    IF v_rows IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE queen.partition_consumers c
    SET position = CASE WHEN p_at IS NULL THEN l.last_offset ELSE queen.offset_before(c.partition_id, p_at, true) END,
        done = '{}', lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, attempts = 0, retry_at = NULL
    FROM queen.partition_lookup l
    WHERE c.partition_id = ANY (v_rows) AND c.consumer_group = p_group AND l.partition_id = c.partition_id;
    PERFORM queen.settle(v_rows, array_fill(p_group, ARRAY[cardinality(v_rows)]), false);
    RETURN cardinality(v_rows);
END $$;
