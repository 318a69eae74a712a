-- Which messages of a push do not fit into their queues' maxSize: the indexes of those, or null. What is stored already, or waits in the
-- operation queue, takes no room a second time. p_held (parallel to the targets, or null) is what the caller has accepted for the queue of
-- a target and not written yet. The other parameters are as of queen.push.
-- The caller holds the rows of the limited queues, so two pushes cannot use the same room.
CREATE OR REPLACE FUNCTION queen.refuse_over_size(
    p_limited uuid[], p_partitions uuid[], p_target integer[], p_transaction text[], p_held bigint[])
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    v_queue   record;
    v_free    bigint;
    v_over    integer[];
    v_refused integer[];
BEGIN
    FOR v_queue IN
        SELECT w.queue_id AS id, w.wanted, w.held FROM (
            SELECT l.queue_id, sum(t.messages)::bigint AS wanted, coalesce(max(p_held[t.target]), 0) AS held
            FROM (SELECT target, count(*) AS messages FROM unnest(p_target) AS u (target) GROUP BY target) t
            JOIN queen.partition_lookup l ON l.partition_id = p_partitions[t.target] AND l.queue_id = ANY (p_limited)
            GROUP BY l.queue_id
        ) w
        JOIN queen.queues q ON q.id = w.queue_id
        LEFT JOIN queen.queue_sizes s ON s.queue_id = w.queue_id
        -- The usual case ends here: there is room by what is known, and nothing was added without being counted.
        WHERE s.size IS NULL OR s.size + w.wanted + w.held > q.max_size
           OR EXISTS (SELECT 1 FROM queen.queue_size_changes c WHERE c.queue_id = w.queue_id)
    LOOP
        v_free := queen.free_room(v_queue.id, v_queue.wanted + v_queue.held) - v_queue.held;
        CONTINUE WHEN v_queue.wanted <= v_free;
        WITH waiting AS MATERIALIZED (
            SELECT DISTINCT o.partition_id, x.transaction_id
            FROM queen.operation_queue o CROSS JOIN LATERAL unnest(o.transaction_ids) AS x (transaction_id)
            WHERE o.partition_id = ANY (p_partitions) AND o.status IN ('pending', 'processing')
        ), fresh AS (
            SELECT t.i, row_number() OVER (ORDER BY t.i) AS nth
            FROM unnest(p_target, p_transaction) WITH ORDINALITY AS t (target, transaction_id, i)
            JOIN queen.partition_lookup l ON l.partition_id = p_partitions[t.target] AND l.queue_id = v_queue.id
            -- LIMIT keeps it at one probe of the index a message.
            LEFT JOIN LATERAL (
                SELECT true AS there FROM queen.messages m
                WHERE m.partition_id = p_partitions[t.target] AND m.transaction_id = t.transaction_id LIMIT 1
            ) m ON true
            LEFT JOIN waiting w ON w.partition_id = p_partitions[t.target] AND w.transaction_id = t.transaction_id
            WHERE m.there IS NULL AND w.transaction_id IS NULL
        )
        SELECT array_agg(f.i::integer) INTO v_over FROM fresh f WHERE f.nth > v_free;
        v_refused := v_refused || v_over;
    END LOOP;
    RETURN v_refused;
END $$;
