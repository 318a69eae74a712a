-- One bounded step of moving a group within a queue, or within one partition of it: behind the newest message (p_at null), or behind the
-- last message that is not younger than p_at; up to p_limit partitions after p_after. Ends leases and forgets attempts.
-- p_bound is when the seek was asked for, null for now: places that the group got since then stay, and the newest message is the
-- newest of that moment; a group that is beyond it already stays where it is, with its lease.
-- Returns how many partitions were moved, and whether that was all or after which partition to go on.
-- Locks: rows of partition_consumers by (partition, group); then heads that the group reaches, without waiting.
CREATE OR REPLACE FUNCTION queen.seek(
    p_queue uuid, p_partition text, p_group text, p_at timestamptz, p_after uuid, p_bound timestamptz, p_limit integer,
    OUT moved bigint, OUT next uuid, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
    v_ids   uuid[];
BEGIN
    SELECT * INTO v_queue FROM queen.queues WHERE id = p_queue;
    SELECT array_agg(x.partition_id ORDER BY x.partition_id) INTO v_ids FROM (
        SELECT l.partition_id FROM queen.partition_lookup l
        WHERE l.queue_id = p_queue AND l.partition_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
          AND (p_partition IS NULL OR l.partition_id = (
              SELECT p.id FROM queen.partitions p WHERE p.queue_id = p_queue AND p.name = p_partition))
        ORDER BY l.partition_id LIMIT p_limit
    ) x;
    finished := p_partition IS NOT NULL OR coalesce(cardinality(v_ids), 0) < p_limit;
    next := v_ids[cardinality(v_ids)];
    PERFORM 1 FROM queen.partition_consumers c
    WHERE c.partition_id = ANY (v_ids) AND c.consumer_group = p_group
    ORDER BY c.partition_id FOR NO KEY UPDATE OF c;

    WITH target AS MATERIALIZED (
        SELECT c.partition_id, CASE WHEN p_at IS NULL AND p_bound IS NULL THEN l.last_offset
                                    ELSE queen.offset_before(c.partition_id, coalesce(p_at, p_bound), true) END AS position,
               l.first_offset, l.holes
        FROM queen.partition_consumers c
        JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
        WHERE c.partition_id = ANY (v_ids) AND c.consumer_group = p_group AND (p_bound IS NULL OR c.created_at <= p_bound)
    ), place AS MATERIALIZED (
        SELECT t.partition_id, t.position, t.first_offset, t.holes,
               -- What the group finished beyond the end of that moment stays finished.
               CASE WHEN p_at IS NULL THEN c.done * int8multirange(int8range(t.position + 1, NULL)) ELSE '{}' END AS done
        FROM target t JOIN queen.partition_consumers c ON c.partition_id = t.partition_id AND c.consumer_group = p_group
        WHERE p_at IS NOT NULL OR p_bound IS NULL OR c.position < t.position
    ), held AS MATERIALIZED (
        -- Asleep only under the head's lock (see queen.settle).
        SELECT l.partition_id FROM place JOIN queen.partition_lookup l ON l.partition_id = place.partition_id
        WHERE l.last_offset <= place.position
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), changed AS (
        UPDATE queen.partition_consumers c
        SET position = place.position, done = place.done,
            passed_over = greatest(place.position, place.first_offset - 1) + place.holes + queen.count_offsets(place.done)
                          - c.total_consumed,
            attempts = 0, failures = NULL, retry_at = NULL, skipped = NULL,
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
        WHERE c.partition_id = place.partition_id AND c.consumer_group = p_group
    )
    SELECT count(*) INTO moved FROM target;
    IF v_queue.max_size > 0 THEN
        INSERT INTO queen.queue_size_changes (queue_id) VALUES (p_queue);      -- a group that went back has more to read
    END IF;
END $$;
