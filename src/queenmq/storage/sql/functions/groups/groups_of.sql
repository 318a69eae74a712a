-- The groups of a queue by name, up to p_limit: those that have subscribed, and those that have a place in a partition without that
-- because they have only popped partitions by name. `registered` groups have a place in every partition; `started` ones in some.
-- Steps from group to group in the index, however many partitions there are; locks nothing.
CREATE OR REPLACE FUNCTION queen.groups_of(p_queue text, p_limit integer)
RETURNS TABLE (name text, registered boolean, started boolean) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE placed (name, id) AS (
        SELECT (SELECT min(c.consumer_group) FROM queen.partition_consumers c WHERE c.queue_id = q.id), q.id
        FROM queen.queues q WHERE q.name = p_queue
        UNION ALL
        SELECT (SELECT min(c.consumer_group) FROM queen.partition_consumers c
                WHERE c.queue_id = placed.id AND c.consumer_group > placed.name), placed.id
        FROM placed WHERE placed.name IS NOT NULL
    ), known AS (
        (SELECT p.name, true AS started FROM placed p WHERE p.name IS NOT NULL LIMIT p_limit)
        UNION ALL
        (SELECT g.name, false FROM queen.consumer_groups g WHERE g.queue_name = p_queue ORDER BY g.name LIMIT p_limit)
    )
    SELECT k.name, coalesce(bool_or(g.registered), false), bool_or(k.started) OR coalesce(bool_or(g.registered AND q.id IS NOT NULL), false)
    FROM known k
    LEFT JOIN queen.consumer_groups g ON g.queue_name = p_queue AND g.name = k.name
    LEFT JOIN queen.queues q ON q.name = p_queue
    GROUP BY k.name ORDER BY k.name LIMIT p_limit
$$;
