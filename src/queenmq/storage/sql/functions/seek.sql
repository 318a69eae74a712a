-- Move a group within a queue, or within one partition of it: behind the newest message (p_at null), or behind the
-- last message that is not younger than p_at. Ends leases and forgets attempts. Returns the partitions moved.
-- Locks: rows of partition_consumers by (partition, group); then heads that the group reaches, without waiting.
CREATE OR REPLACE FUNCTION queen.seek(p_group text, p_queue text, p_partition text, p_at timestamptz)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
    v_moved integer;
BEGIN
    SELECT * INTO v_queue FROM queen.queues WHERE name = p_queue;
    PERFORM 1 FROM queen.partition_consumers c
    JOIN queen.partitions p ON p.id = c.partition_id AND (p_partition IS NULL OR p.name = p_partition)
    WHERE c.queue_id = v_queue.id AND c.consumer_group = p_group
    ORDER BY c.partition_id FOR NO KEY UPDATE OF c;

    WITH place AS MATERIALIZED (
        SELECT c.partition_id, CASE WHEN p_at IS NULL THEN l.last_offset
                                    ELSE queen.offset_before(c.partition_id, p_at, true) END AS position,
               l.first_offset, l.holes
        FROM queen.partition_consumers c
        JOIN queen.partitions p ON p.id = c.partition_id AND (p_partition IS NULL OR p.name = p_partition)
        JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
        WHERE c.queue_id = v_queue.id AND c.consumer_group = p_group
    ), held AS MATERIALIZED (
        -- Asleep only under the head's lock (see queen.settle).
        SELECT l.partition_id FROM place JOIN queen.partition_lookup l ON l.partition_id = place.partition_id
        WHERE l.last_offset <= place.position
        FOR NO KEY UPDATE OF l SKIP LOCKED
    )
    UPDATE queen.partition_consumers c
    SET position = place.position, done = '{}',
        passed_over = greatest(place.position, place.first_offset - 1) + place.holes - c.total_consumed,
        attempts = 0, retry_at = NULL,
        lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL,
        -- IN and not a join: it is hashed, however few rows the planner expects.
        ready_at = CASE WHEN place.partition_id NOT IN (SELECT partition_id FROM held) THEN
            greatest(clock_timestamp(),
                     CASE WHEN v_queue.delayed_processing_s > 0 THEN (
                         SELECT m.created_at + make_interval(secs => v_queue.delayed_processing_s)
                         FROM queen.messages m
                         WHERE m.partition_id = place.partition_id AND m."offset" > place.position
                         ORDER BY m."offset" LIMIT 1) END,
                     CASE WHEN v_queue.window_buffer_s > 0 THEN (
                         SELECT l.last_message_at + make_interval(secs => v_queue.window_buffer_s)
                         FROM queen.partition_lookup l WHERE l.partition_id = place.partition_id) END) END
    FROM place
    WHERE c.partition_id = place.partition_id AND c.consumer_group = p_group;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    RETURN v_moved;
END $$;
