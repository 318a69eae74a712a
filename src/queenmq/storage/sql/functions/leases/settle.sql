-- Decide when a pop may claim these (partition, group) rows again. Rows under a lease are left alone.
-- Null (asleep until the next push) only while the partition's head is locked here, because only then is it certain
-- that no push is under way which still sees the row awake. A head that a push holds is not waited for: the row
-- stays awake, and the next pop settles it. If it was awake before, it is not even written: a transaction may keep the head
-- for long, and every pop would write it again. The same holds for a row in which all that is unread is skipped: it waits for the first of that, and
-- a push that brings something else makes it ready (see queen.on_messages_insert).
-- p_verify: also check whether anything unread is really stored (retention may have removed it).
-- The caller holds the rows of partition_consumers. Locks rows of partition_lookup without ever waiting.
CREATE OR REPLACE FUNCTION queen.settle(p_partitions uuid[], p_groups text[], p_verify boolean)
RETURNS void LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_partitions uuid[];
    v_groups     text[];
    v_held       uuid[];
BEGIN
    -- In portions, because joins of long arrays are planned as if they were short.
    FOR v_from IN 1 .. cardinality(p_partitions) BY 500 LOOP
        v_partitions := p_partitions[v_from : v_from + 499];
        v_groups := p_groups[v_from : v_from + 499];

        SELECT array_agg(partition_id) INTO v_held FROM (
            SELECT l.partition_id FROM (
                SELECT t.id, max(c.position) FILTER (WHERE c.lease_id IS NULL) AS position, bool_or(c.skipped IS NOT NULL) AS skips
                FROM unnest(v_partitions, v_groups) AS t (id, grp)
                CROSS JOIN LATERAL (
                    SELECT x.position, x.lease_id, x.skipped FROM queen.partition_consumers x
                    WHERE x.partition_id = t.id AND x.consumer_group = t.grp ORDER BY x.generation DESC LIMIT 1
                ) c
                GROUP BY t.id
            ) t
            CROSS JOIN LATERAL (
                SELECT h.ctid AS version, h.last_offset FROM queen.partition_lookup h
                WHERE h.partition_id = t.id ORDER BY h.generation DESC LIMIT 1
            ) n
            JOIN queen.partition_lookup l ON l.ctid = n.version
            WHERE p_verify OR t.position >= n.last_offset OR t.skips
            FOR NO KEY UPDATE OF l SKIP LOCKED
        ) held;

        UPDATE queen.partition_consumers c
        SET position = CASE WHEN s.read THEN greatest(c.position, s.last_offset) ELSE c.position END,
            done     = CASE WHEN s.read THEN '{}' ELSE c.done END,
            failures = CASE WHEN s.read THEN NULL ELSE c.failures END,
            attempts = CASE WHEN s.read THEN 0 ELSE c.attempts END,
            retry_at = CASE WHEN s.read THEN NULL ELSE c.retry_at END,
            skipped  = CASE WHEN s.read THEN NULL ELSE c.skipped END,
            generation = c.generation + 1,
            ready_at = CASE WHEN s.read THEN NULL ELSE greatest(clock_timestamp(), c.retry_at, s.ripe_at) END
        FROM (
            SELECT c.version, l.last_offset,
                   h.partition_id IS NOT NULL AND e.is_empty AS read,
                   greatest(CASE WHEN h.partition_id IS NOT NULL THEN w.until END,
                            CASE WHEN q.delayed_processing_s > 0
                                 THEN n.created_at + make_interval(secs => q.delayed_processing_s) END,
                            CASE WHEN q.window_buffer_s > 0
                                 THEN l.last_message_at + make_interval(secs => q.window_buffer_s) END) AS ripe_at
            FROM unnest(v_partitions, v_groups) AS t (partition_id, consumer_group)
            CROSS JOIN LATERAL (
                SELECT x.partition_id, x.ctid AS version, x.queue_id, x.position, x.done, x.lease_id, x.ready_at, x.skipped,
                       CASE WHEN x.skipped IS NULL THEN x.done ELSE x.done + queen.kept_back(x.skipped, clock_timestamp()) END AS hidden
                FROM queen.partition_consumers x
                WHERE x.partition_id = t.partition_id AND x.consumer_group = t.consumer_group ORDER BY x.generation DESC LIMIT 1
            ) c
            CROSS JOIN LATERAL (
                SELECT h.last_offset, h.last_message_at FROM queen.partition_lookup h
                WHERE h.partition_id = c.partition_id ORDER BY h.generation DESC LIMIT 1
            ) l
            LEFT JOIN unnest(v_held) AS h (partition_id) ON h.partition_id = c.partition_id
            JOIN queen.queues q ON q.id = c.queue_id
            LEFT JOIN LATERAL (
                SELECT m.created_at FROM queen.messages m
                WHERE m.partition_id = c.partition_id AND NOT c.hidden @> m."offset"
                  -- Behind what is skipped there may be very much that is finished.
                  AND m."offset" > CASE WHEN c.skipped IS NULL THEN c.position ELSE queen.end_of_done(c.hidden, c.position) END
                  AND (p_verify OR q.delayed_processing_s > 0 OR c.skipped IS NOT NULL)
                ORDER BY m."offset" LIMIT 1
            ) n ON true
            CROSS JOIN LATERAL (
                SELECT CASE WHEN c.skipped IS NOT NULL AND n.created_at IS NULL
                            THEN queen.skipped_until(c.partition_id, c.position, c.done, c.skipped, q.ttl_s) END AS until
            ) w
            CROSS JOIN LATERAL (
                SELECT c.position >= l.last_offset OR (p_verify AND n.created_at IS NULL AND w.until IS NULL) AS is_empty
            ) e
            WHERE c.lease_id IS NULL
              AND NOT (h.partition_id IS NULL AND (e.is_empty OR coalesce(w.until > clock_timestamp(), false)) AND c.ready_at <= clock_timestamp())
        ) s
        WHERE c.ctid = s.version AND c.lease_id IS NULL;
    END LOOP;
END $$;
