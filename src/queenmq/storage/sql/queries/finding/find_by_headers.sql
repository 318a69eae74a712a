-- Messages that have the headers $1 (JSON); up to $2, of queues that fit the patterns $3: among the hundred newest of each of up to $4
-- partitions that were written last. `examined` is how many partitions there were. With the index messages_found_by_headers,
-- find_by_headers_indexed.sql is used instead.
WITH place AS MATERIALIZED (
    SELECT r.partition_id, q.name AS queue FROM queen.recent_partitions r
    JOIN queen.queues q ON q.id = r.queue_id AND q.name IS NOT NULL AND ($3::text[] IS NULL OR q.name LIKE ANY ($3))
    ORDER BY r.last_message_at DESC LIMIT $4
)
SELECT e.examined, f.queue, f.partition, f.partition_id, f.transaction_id, f.created_at
FROM (SELECT count(*) AS examined FROM place) e
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
