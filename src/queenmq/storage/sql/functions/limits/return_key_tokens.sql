-- Give back what queen.limit_keys_for has taken and a pop has not delivered: p_messages of each of the partitions, whose keys are p_keys, were taken, and
-- p_counts of p_delivered delivered. The rows are locked by the caller, who calls this in the same transaction.
CREATE OR REPLACE FUNCTION queen.return_key_tokens(
    p_queue uuid, p_scopes text[], p_partitions uuid[], p_keys text[], p_messages integer[], p_delivered uuid[], p_counts integer[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE queen.limit_keys x SET tokens = x.tokens + u.messages, generation = x.generation + 1
    FROM (
        SELECT t.key, sum(t.messages - coalesce(d.count, 0)) AS messages FROM unnest(p_partitions, p_keys, p_messages) AS t (id, key, messages)
        LEFT JOIN unnest(p_delivered, p_counts) AS d (id, count) ON d.id = t.id
        GROUP BY t.key HAVING sum(t.messages - coalesce(d.count, 0)) > 0
    ) u
    CROSS JOIN unnest(p_scopes) AS s (scope)
    CROSS JOIN LATERAL (
        SELECT y.ctid AS version FROM queen.limit_keys y
        WHERE y.queue_id = p_queue AND y.scope = s.scope AND y.key = u.key ORDER BY y.generation DESC LIMIT 1
    ) n
    WHERE x.ctid = n.version AND x.tokens IS NOT NULL;
END $$;
