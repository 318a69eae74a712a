-- Messages that have the headers $1 (JSON) and are among the hundred newest of each of the $4 partitions that were written last, as the
-- statistics know them: up to $2, the newest first, of queues that fit the patterns $3. A header that many messages have is found here, without
-- the index messages_found_by_headers, which would read all that it has of them; is_whole is false, because there may be more.
WITH place AS MATERIALIZED (
    SELECT r.partition_id, q.name AS queue FROM queen.recent_partitions r
    JOIN queen.queues q ON q.id = r.queue_id AND q.name IS NOT NULL AND ($3::text[] IS NULL OR q.name LIKE ANY ($3))
    ORDER BY r.last_message_at DESC LIMIT $4
)
SELECT e.examined, false AS is_whole, f.queue, f.partition, f.partition_id, f.transaction_id, f.created_at
FROM (SELECT count(*) AS examined FROM place) e
LEFT JOIN (
    SELECT m.queue, p.name AS partition, m.partition_id, m.transaction_id, m.created_at
    FROM (
        SELECT place.queue, x.* FROM place
        CROSS JOIN LATERAL (
            SELECT m.partition_id, m.transaction_id, m.created_at, m.headers FROM queen.messages m
            WHERE m.partition_id = place.partition_id ORDER BY m."offset" DESC LIMIT 100
        ) x
        WHERE x.headers @> $1::text::jsonb ORDER BY x.created_at DESC LIMIT $2
    ) m
    CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = m.partition_id LIMIT 1) p
) f ON true
ORDER BY f.created_at DESC
