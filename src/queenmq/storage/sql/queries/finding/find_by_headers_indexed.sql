-- The same as find_by_headers.sql with the index messages_found_by_headers: of up to $4 messages, whichever partitions they are in.
WITH candidate AS MATERIALIZED (
    SELECT m.partition_id, m.transaction_id, m.created_at FROM queen.messages m WHERE m.headers @> $1::text::jsonb LIMIT $4
)
SELECT e.examined, true AS is_whole, f.queue, f.partition, f.partition_id, f.transaction_id, f.created_at
FROM (SELECT count(*) AS examined FROM candidate) e
LEFT JOIN (
    SELECT q.name AS queue, p.name AS partition, c.partition_id, c.transaction_id, c.created_at
    FROM candidate c
    CROSS JOIN LATERAL (SELECT p.name, p.queue_id FROM queen.partitions p WHERE p.id = c.partition_id LIMIT 1) p
    JOIN queen.queues q ON q.id = p.queue_id AND q.name IS NOT NULL AND ($3::text[] IS NULL OR q.name LIKE ANY ($3))
    ORDER BY c.created_at DESC LIMIT $2
) f ON true
ORDER BY f.created_at DESC
