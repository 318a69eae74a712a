-- Which messages of a push do not fit into their queues' maxSize: the indexes of those, or null.
-- The size of a queue is what some group has still to read, or everything stored while no group has popped.
-- The caller holds the rows of the limited queues, so two pushes cannot use the same room.
CREATE OR REPLACE FUNCTION queen.refuse_over_size(
    p_limited uuid[], p_partitions uuid[], p_target integer[], p_duplicates integer[])
RETURNS integer[] LANGUAGE sql AS $$
    WITH room AS (
        SELECT q.id, q.max_size - coalesce(sum(queen.unread(l)), 0) AS free
        FROM queen.queues q
        LEFT JOIN queen.partition_lookup l ON l.queue_id = q.id
        WHERE q.id = ANY (p_limited)
        GROUP BY q.id
    ), wanted AS (
        SELECT t.i, l.queue_id, row_number() OVER (PARTITION BY l.queue_id ORDER BY t.i) AS nth
        FROM unnest(p_target) WITH ORDINALITY AS t (target, i)
        JOIN queen.partition_lookup l ON l.partition_id = p_partitions[t.target]
        LEFT JOIN unnest(p_duplicates) AS d (i) ON d.i = t.i
        WHERE d.i IS NULL
    )
    SELECT array_agg(w.i::integer) FROM wanted w JOIN room r ON r.id = w.queue_id WHERE w.nth > r.free
$$;
