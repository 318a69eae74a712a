-- The size of a queue as maxSize means it: for each partition what its slowest group has not finished (everything stored, if no group
-- reads it), and the messages of accepted pushes that wait in the operation queue. Also how many partitions were examined.
-- One statement, because a queued push that is stored meanwhile must be counted once.
CREATE OR REPLACE FUNCTION queen.count_size(p_queue uuid, OUT size bigint, OUT partitions bigint) LANGUAGE sql STABLE AS $$
    WITH unread AS (
        SELECT coalesce(sum(greatest(0, l.last_offset - greatest(l.first_offset - 1, s.position))), 0) AS messages,
               count(*) AS partitions
        FROM queen.partition_lookup l CROSS JOIN LATERAL (
            SELECT min(c.position) AS position FROM queen.partition_consumers c WHERE c.partition_id = l.partition_id
        ) s
        WHERE l.queue_id = p_queue
    ), waiting AS (
        -- What is open is bounded, whatever else is kept of this queue.
        SELECT coalesce(sum(o.items), 0) AS messages
        FROM queen.operation_queue o JOIN queen.partition_lookup l ON l.partition_id = o.partition_id AND l.queue_id = p_queue
        WHERE o.kind = 'push' AND o.status IN ('pending', 'processing')
    )
    SELECT (u.messages + w.messages)::bigint, u.partitions FROM unread u, waiting w
$$;
