-- The newest messages, at most p_limit, pushed between p_from and p_to: of a partition, of a queue, or of a namespace and task; all of
-- these may be null. Reads the partitions that were written last: of a queue with up to 5,000 of them at all, else at
-- those that the statistics keep. Reads at most p_limit messages of each of at most p_limit partitions, by index; locks nothing.
CREATE OR REPLACE FUNCTION queen.recent_messages(
    p_queue text, p_partition text, p_namespace text, p_task text, p_from timestamptz, p_to timestamptz, p_limit integer)
RETURNS TABLE (partition_id uuid, "offset" bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_queue      uuid;
    v_partitions uuid[];
    v_times      timestamptz[];
    v_since      timestamptz := coalesce(p_from, '-infinity');
BEGIN
    IF p_queue IS NOT NULL THEN
        SELECT id INTO v_queue FROM queen.queues
        WHERE name = p_queue AND (p_namespace IS NULL OR namespace = p_namespace) AND (p_task IS NULL OR task = p_task);
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF v_queue IS NOT NULL AND p_partition IS NOT NULL THEN
        SELECT array_agg(l.partition_id), array_agg(l.last_message_at) INTO v_partitions, v_times
        FROM queen.partitions p JOIN queen.partition_lookup l ON l.partition_id = p.id
        WHERE p.queue_id = v_queue AND p.name = p_partition AND l.last_message_at >= v_since;
    ELSIF v_queue IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM queen.partition_lookup WHERE queue_id = v_queue OFFSET 5000 LIMIT 1
    ) THEN
        SELECT array_agg(x.partition_id), array_agg(x.last_message_at) INTO v_partitions, v_times FROM (
            SELECT l.partition_id, l.last_message_at FROM queen.partition_lookup l
            WHERE l.queue_id = v_queue AND l.last_message_at >= v_since
            ORDER BY l.last_message_at DESC LIMIT p_limit
        ) x;
    ELSIF v_queue IS NOT NULL OR p_namespace IS NOT NULL OR p_task IS NOT NULL THEN
        SELECT array_agg(x.partition_id), array_agg(x.last_message_at) INTO v_partitions, v_times FROM (
            SELECT r.partition_id, r.last_message_at
            FROM queen.queues q JOIN queen.recent_partitions r ON r.queue_id = q.id
            WHERE (v_queue IS NULL OR q.id = v_queue) AND (p_namespace IS NULL OR q.namespace = p_namespace)
              AND (p_task IS NULL OR q.task = p_task) AND r.last_message_at >= v_since
            ORDER BY r.last_message_at DESC LIMIT p_limit
        ) x;
    ELSE
        SELECT array_agg(x.partition_id), array_agg(x.last_message_at) INTO v_partitions, v_times FROM (
            SELECT r.partition_id, r.last_message_at FROM queen.recent_partitions r
            WHERE r.last_message_at >= v_since
            ORDER BY r.last_message_at DESC LIMIT p_limit
        ) x;
    END IF;
    IF v_queue IS NULL AND p_partition IS NOT NULL THEN
        SELECT array_agg(p.id), array_agg(t.at) INTO v_partitions, v_times
        FROM unnest(v_partitions, v_times) AS t (id, at)
        JOIN queen.partitions p ON p.id = t.id AND p.name = p_partition;
    END IF;
    -- Each of them has a message at least as new as the last one's newest, so nothing older can be among the newest.
    IF cardinality(v_partitions) = p_limit AND (p_to IS NULL OR v_times[1] <= p_to) THEN
        v_since := greatest(v_since, v_times[p_limit]);
    END IF;

    RETURN QUERY
    SELECT x.partition_id, x."offset" FROM (
        SELECT m.partition_id, m."offset", m.created_at
        FROM unnest(v_partitions, v_times) AS t (id, at)
        CROSS JOIN LATERAL (
            SELECT CASE WHEN v_since = '-infinity' THEN 0 ELSE queen.offset_before(t.id, v_since) END AS after,
                   CASE WHEN p_to IS NULL OR t.at <= p_to THEN 9223372036854775807
                        ELSE queen.offset_before(t.id, p_to, true) END AS upto
            OFFSET 0
        ) b
        CROSS JOIN LATERAL (
            SELECT m.partition_id, m."offset", m.created_at FROM queen.messages m
            WHERE m.partition_id = t.id AND m."offset" > b.after AND m."offset" <= b.upto
            ORDER BY m."offset" DESC LIMIT p_limit
        ) m
    ) x ORDER BY x.created_at DESC, x.partition_id, x."offset" DESC LIMIT p_limit;
END $$;
