-- Complete everything that these (partition, group) rows have under their leases, and end the leases: one update of a row, however many
-- messages it is about. The same as queen.ack of each of the messages as `completed`. p_count is how many they are.
-- The caller holds the rows and has checked the leases. Locks heads that the groups reach, without waiting.
CREATE OR REPLACE FUNCTION queen.finish_leased(p_partitions uuid[], p_groups text[], p_counts bigint[])
RETURNS void LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_now  timestamptz;
    v_held uuid[];
BEGIN
    -- Only a group that reaches the head may fall asleep, and only under the head's lock (see queen.settle).
    SELECT array_agg(x.partition_id) INTO v_held FROM (
        SELECT l.partition_id
        FROM unnest(p_partitions, p_groups) AS t (part, grp)
        CROSS JOIN LATERAL (
            SELECT n.position, n.lease_offsets, n.done FROM queen.partition_consumers n
            WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
        ) c
        CROSS JOIN LATERAL (
            SELECT h.ctid AS version, h.last_offset FROM queen.partition_lookup h
            WHERE h.partition_id = t.part ORDER BY h.generation DESC LIMIT 1
        ) n
        JOIN queen.partition_lookup l ON l.ctid = n.version
        WHERE n.last_offset <= greatest(c.position, upper(c.lease_offsets) - 1, upper(c.done) - 1)
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
        skipped = CASE WHEN c.skipped IS NOT NULL THEN queen.still_skipped(c.skipped, g.position, g.done) END,
        attempts = CASE WHEN g.failures IS NULL THEN 0
                        ELSE queen.head_failures(c.partition_id, g.position, g.done, g.failures) END,
        retry_at = CASE WHEN g.position < g.last_offset THEN c.retry_at END,
        ready_at = CASE WHEN g.position < g.last_offset THEN greatest(v_now, c.retry_at)
                        WHEN g.held THEN NULL ELSE v_now END,
        total_consumed = c.total_consumed + g.n,
        last_consumed_at = v_now,
        generation = c.generation + 1
    FROM (
        SELECT c.version, t.n, l.last_offset, h.id IS NOT NULL AS held, b.done, e.position,
               CASE WHEN c.failures IS NOT NULL
                    THEN queen.count_failures(c.failures, '{}', e.position, b.done) END AS failures
        FROM unnest(p_partitions, p_groups, p_counts) AS t (part, grp, n)
        CROSS JOIN LATERAL (
            SELECT n.ctid AS version, n.partition_id, n.position, n.lease_offsets, n.done, n.failures, n.skipped FROM queen.partition_consumers n
            WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
        ) c
        CROSS JOIN LATERAL (
            SELECT h.last_offset FROM queen.partition_lookup h
            WHERE h.partition_id = t.part ORDER BY h.generation DESC LIMIT 1
        ) l
        LEFT JOIN unnest(v_held) AS h (id) ON h.id = t.part
        CROSS JOIN LATERAL (
            SELECT c.done + c.lease_offsets AS done,
                   CASE WHEN c.skipped IS NULL THEN greatest(c.position, upper(c.lease_offsets) - 1)
                        ELSE queen.reached(c.partition_id, c.position, c.done + c.lease_offsets, greatest(c.position, upper(c.lease_offsets) - 1))
                   END AS floor
        ) b
        CROSS JOIN LATERAL (
            SELECT CASE WHEN isempty(c.done) THEN b.floor
                        ELSE coalesce((SELECT upper(d) - 1 FROM unnest(b.done) AS d WHERE d @> b.floor + 1), b.floor)
                   END AS position
        ) e
    ) g
    WHERE c.ctid = g.version;

    -- Delays, windows and what is skipped have their own idea of when the rest may be read. Few databases have such queues, and that is quickly asked.
    IF EXISTS (SELECT 1 FROM queen.queues q WHERE q.delayed_processing_s + q.window_buffer_s > 0)
       OR EXISTS (SELECT 1 FROM queen.policies) THEN
        PERFORM queen.settle(array_agg(c.partition_id), array_agg(c.consumer_group), false)
        FROM unnest(p_partitions, p_groups) AS t (part, grp)
        CROSS JOIN LATERAL (
            SELECT n.partition_id, n.consumer_group, n.queue_id, n.lease_id, n.ready_at, n.skipped FROM queen.partition_consumers n
            WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
        ) c
        JOIN queen.queues q ON q.id = c.queue_id AND (q.delayed_processing_s + q.window_buffer_s > 0 OR c.skipped IS NOT NULL)
        WHERE c.lease_id IS NULL AND c.ready_at IS NOT NULL
        HAVING count(*) > 0;
    END IF;
END $$;
