-- Complete everything that these (partition, group) rows have under their leases, and end the leases: one update of a row, however many
-- messages it is about. The same as queen.ack of each of the messages as `completed`. p_count is how many they are.
-- The caller holds the rows and has checked the leases. Locks heads that the groups reach, without waiting.
CREATE OR REPLACE FUNCTION queen.finish_leased(p_partitions uuid[], p_groups text[], p_counts bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now  timestamptz;
    v_held uuid[];
BEGIN
    -- Only a group that reaches the head may fall asleep, and only under the head's lock (see queen.settle).
    SELECT array_agg(x.partition_id) INTO v_held FROM (
        SELECT l.partition_id
        FROM unnest(p_partitions, p_groups) AS t (part, grp)
        JOIN queen.partition_consumers c ON c.partition_id = t.part AND c.consumer_group = t.grp
        JOIN queen.partition_lookup l ON l.partition_id = t.part
        WHERE l.last_offset <= greatest(c.position, upper(c.lease_offsets) - 1, upper(c.done) - 1)
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ) x;

    v_now := clock_timestamp();
    UPDATE queen.partition_consumers c
    SET position = g.position,
        done = g.done * int8multirange(int8range(g.position + 1, NULL)),
        lease_offsets = NULL,
        lease_id = NULL,
        lease_expires_at = NULL,
        failures = g.failures,
        attempts = CASE WHEN g.failures IS NULL THEN 0
                        ELSE queen.head_failures(c.partition_id, g.position, g.done, g.failures) END,
        retry_at = CASE WHEN g.position < g.last_offset THEN c.retry_at END,
        ready_at = CASE WHEN g.position < g.last_offset THEN greatest(v_now, c.retry_at)
                        WHEN g.held THEN NULL ELSE v_now END,
        total_consumed = c.total_consumed + g.n,
        last_consumed_at = v_now
    FROM (
        SELECT t.part, t.grp, t.n, l.last_offset, h.id IS NOT NULL AS held, b.done, e.position,
               CASE WHEN c.failures IS NOT NULL
                    THEN queen.count_failures(c.failures, '{}', e.position, b.done) END AS failures
        FROM unnest(p_partitions, p_groups, p_counts) AS t (part, grp, n)
        JOIN queen.partition_consumers c ON c.partition_id = t.part AND c.consumer_group = t.grp
        JOIN queen.partition_lookup l ON l.partition_id = t.part
        LEFT JOIN unnest(v_held) AS h (id) ON h.id = t.part
        CROSS JOIN LATERAL (
            SELECT c.done + c.lease_offsets AS done, greatest(c.position, upper(c.lease_offsets) - 1) AS floor
        ) b
        CROSS JOIN LATERAL (
            SELECT CASE WHEN isempty(c.done) THEN b.floor
                        ELSE coalesce((SELECT upper(d) - 1 FROM unnest(b.done) AS d WHERE d @> b.floor + 1), b.floor)
                   END AS position
        ) e
    ) g
    WHERE c.partition_id = g.part AND c.consumer_group = g.grp;

    -- Delays and windows have their own idea of when the rest may be read.
    PERFORM queen.settle(array_agg(c.partition_id), array_agg(c.consumer_group), false)
    FROM unnest(p_partitions, p_groups) AS t (part, grp)
    JOIN queen.partition_consumers c ON c.partition_id = t.part AND c.consumer_group = t.grp
    JOIN queen.queues q ON q.id = c.queue_id AND q.delayed_processing_s + q.window_buffer_s > 0
    WHERE c.lease_id IS NULL AND c.ready_at IS NOT NULL
    HAVING count(*) > 0;
END $$;
