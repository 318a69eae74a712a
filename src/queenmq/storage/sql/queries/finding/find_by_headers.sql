-- Messages that have the headers $1 (JSON); up to $2, of queues that fit the patterns $3: among the hundred newest of each of up to $4
-- partitions, those first that were written last. `examined` is how many partitions there were, `is_whole` whether none has more than a
-- hundred. What was written since the last statistics is not in recent_partitions: partition_lookup has it. With the index
-- messages_found_by_headers, find_by_headers_indexed.sql is used instead.
WITH place AS MATERIALIZED (
    SELECT x.partition_id, q.name AS queue, l.last_offset - l.first_offset < 100 AS is_whole FROM (
        SELECT y.partition_id, y.queue_id, max(y.last_message_at) AS last_message_at FROM (
            (SELECT r.partition_id, r.queue_id, r.last_message_at FROM queen.recent_partitions r
             JOIN queen.queues q ON q.id = r.queue_id AND q.name IS NOT NULL AND ($3::text[] IS NULL OR q.name LIKE ANY ($3))
             ORDER BY r.last_message_at DESC LIMIT $4)
            UNION ALL
            (SELECT l.partition_id, l.queue_id, l.last_message_at FROM queen.partition_lookup l
             JOIN queen.queues q ON q.id = l.queue_id AND q.name IS NOT NULL AND ($3 IS NULL OR q.name LIKE ANY ($3))
             WHERE l.first_offset <= l.last_offset LIMIT $4)
        ) y GROUP BY y.partition_id, y.queue_id
        ORDER BY last_message_at DESC NULLS LAST LIMIT $4
    ) x
    JOIN queen.queues q ON q.id = x.queue_id
    CROSS JOIN LATERAL (
        SELECT n.first_offset, n.last_offset FROM queen.partition_lookup n
        WHERE n.partition_id = x.partition_id ORDER BY n.generation DESC LIMIT 1
    ) l
    ORDER BY x.last_message_at DESC NULLS LAST
)
SELECT e.examined, e.is_whole, f.queue, f.partition, f.partition_id, f.transaction_id, f.created_at
FROM (SELECT count(*) AS examined, coalesce(bool_and(is_whole), true) AS is_whole FROM place) e
LEFT JOIN (
    SELECT place.queue, p.name AS partition, m.partition_id, m.transaction_id, m.created_at
    FROM place
    CROSS JOIN LATERAL (
        SELECT x.partition_id, x.transaction_id, x.created_at FROM (
            SELECT m.* FROM queen.messages m WHERE m.partition_id = place.partition_id ORDER BY m."offset" DESC LIMIT 100
        ) x WHERE x.headers @> $1::text::jsonb
    ) m
    CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = m.partition_id LIMIT 1) p
    LIMIT $2
) f ON true
ORDER BY f.created_at DESC
