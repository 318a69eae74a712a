-- Complete everything that these (partition, group) rows have under their leases, and end the leases: one update of a row, however many
-- messages it is about. The same as queen.ack of each of the messages as `completed`. p_count is how many they are.
-- The caller holds the rows and has checked the leases. Locks heads that the groups reach, and rows of breakers, without waiting.
CREATE OR REPLACE FUNCTION queen.finish_leased(p_partitions uuid[], p_groups text[], p_counts bigint[])
RETURNS void LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are; and it takes longer than the statement itself.
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now     timestamptz;
    v_held    uuid[];
    v_special boolean;
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
    -- Few databases have such queues, and that is quickly asked.
    v_special := EXISTS (SELECT 1 FROM queen.queues q WHERE q.delayed_processing_s + q.window_buffer_s > 0)
                 OR EXISTS (SELECT 1 FROM queen.policies);
    IF v_special AND EXISTS (SELECT 1 FROM queen.policies y WHERE y.breaker IS NOT NULL) THEN
        PERFORM queen.note_outcomes(x.queue_id, x.grp, x.leases, x.n, 0) FROM (
            SELECT c.queue_id, t.grp, array_agg(DISTINCT c.lease_id) AS leases, sum(t.n)::bigint AS n
            FROM unnest(p_partitions, p_groups, p_counts) AS t (part, grp, n)
            CROSS JOIN LATERAL (
                SELECT n.queue_id, n.lease_id FROM queen.partition_consumers n
                WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
            ) c
            GROUP BY c.queue_id, t.grp
        ) x;
    END IF;
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

    -- Delays, windows and what is skipped have their own idea of when the rest may be read.
    IF v_special THEN
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
