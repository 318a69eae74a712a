-- Messages of a push were stored, or queued as operations: their queues with maxSize (p_limited) hold so many more. Those with an index
-- in p_left_out, and those of the targets in p_overflow, were not. The other parameters are as of queen.push, whose caller holds the
-- rows of the queues.
CREATE OR REPLACE FUNCTION queen.add_to_size(
    p_limited uuid[], p_partitions uuid[], p_target integer[], p_left_out integer[], p_overflow integer[])
RETURNS void LANGUAGE sql AS $$
    UPDATE queen.queue_sizes s SET size = s.size + n.added
    FROM (
        SELECT l.queue_id, sum(t.messages) AS added
        FROM (
            SELECT u.target, count(*) AS messages FROM unnest(p_target) WITH ORDINALITY AS u (target, i)
            LEFT JOIN unnest(p_left_out) AS x (i) ON x.i = u.i
            WHERE x.i IS NULL GROUP BY u.target
        ) t
        JOIN queen.partition_lookup l ON l.partition_id = p_partitions[t.target] AND l.queue_id = ANY (p_limited)
        WHERE p_overflow IS NULL OR t.target <> ALL (p_overflow)
        GROUP BY l.queue_id
    ) n
    WHERE s.queue_id = n.queue_id
$$;
