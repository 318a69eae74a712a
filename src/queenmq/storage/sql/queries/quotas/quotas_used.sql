-- The quotas, each with what is stored in its queues: messages and dead letters as of the last measurement of each queue, timers, and
-- pushes that are deferred.
-- Bytes are estimated from the sizes of $1 messages of each queue, drawn at random from its partitions that were written last; only where
-- bytes have a limit. Reads one row a queue, a timer and a deferred push, and those messages.
SELECT u.namespace, u.max_messages, u.max_bytes, u.requests_per_second, u.messages_per_second, u.long_polls,
       coalesce(q.messages, 0)::bigint + t.messages + o.messages AS messages,
       CASE WHEN u.max_bytes IS NOT NULL THEN coalesce(q.bytes, 0)::bigint + t.bytes + o.bytes END AS bytes
FROM queen.quotas u
CROSS JOIN LATERAL (
    SELECT sum(s.total + s.dead_letters) AS messages, sum((s.total + s.dead_letters) * d.size) AS bytes
    FROM (
        SELECT id FROM queen.queues WHERE name = u.namespace
        UNION ALL
        SELECT id FROM queen.queues WHERE name > u.namespace || '.' AND name < u.namespace || '/'
    ) own
    JOIN queen.queue_statistics s ON s.queue_id = own.id
    LEFT JOIN LATERAL (
        SELECT sum(p.stored * p.size) / sum(p.stored) AS size FROM (
            SELECT l.stored, (
                SELECT avg(m.size) FROM generate_series(0, $1 / greatest(1, least($1, s.partitions))) AS n
                CROSS JOIN LATERAL (
                    SELECT pg_column_size(m.payload) AS size FROM queen.messages m
                    WHERE m.partition_id = l.partition_id AND m."offset" >= l.first_offset + n * 0 + floor(random() * l.stored)::bigint
                    ORDER BY m."offset" LIMIT 1
                ) m
            ) AS size
            FROM (
                SELECT l.partition_id, l.first_offset, l.last_offset - l.first_offset + 1 AS stored
                FROM (SELECT r.partition_id FROM queen.recent_partitions r WHERE r.queue_id = own.id ORDER BY random() LIMIT $1) r
                JOIN queen.partition_lookup l USING (partition_id)
                WHERE l.last_offset >= l.first_offset
            ) l
        ) p WHERE p.size IS NOT NULL
    ) d ON u.max_bytes IS NOT NULL
) q
CROSS JOIN LATERAL (
    SELECT count(*) AS messages, CASE WHEN u.max_bytes IS NOT NULL THEN coalesce(sum(pg_column_size(t.payload)), 0) ELSE 0 END AS bytes
    FROM queen.timers t
    WHERE t.queue_name = u.namespace OR (t.queue_name > u.namespace || '.' AND t.queue_name < u.namespace || '/')
) t
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(o.message_ids)), 0)::bigint AS messages, coalesce(sum(o.size_bytes), 0)::bigint AS bytes
    FROM queen.operation_queue o
    WHERE o.kind = 'push' AND o.status IN ('pending', 'processing')
      AND (o.queue_name = u.namespace OR (o.queue_name > u.namespace || '.' AND o.queue_name < u.namespace || '/'))
) o
ORDER BY u.namespace
