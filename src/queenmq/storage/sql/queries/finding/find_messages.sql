-- Messages whose transactionId begins with $1; up to $2, of queues that fit the patterns $3. Examines up to $4 partitions, those first that
-- were written last, one after the other: each is a lookup in the index of its transaction ids. `examined` is how many there were; a row
-- without a message says only that. With the index messages_found_by_transaction, find_messages_indexed.sql is used instead.
WITH place AS MATERIALIZED (
    SELECT x.partition_id, q.name AS queue FROM (
        SELECT partition_id, queue_id, min(turn) AS turn FROM (
            (SELECT r.partition_id, r.queue_id, 1 AS turn FROM queen.recent_partitions r
             JOIN queen.queues q ON q.id = r.queue_id AND ($3::text[] IS NULL OR q.name LIKE ANY ($3)) LIMIT $4)
            UNION ALL
            (SELECT l.partition_id, l.queue_id, 2 FROM queen.partition_lookup l
             JOIN queen.queues q ON q.id = l.queue_id AND ($3 IS NULL OR q.name LIKE ANY ($3))
             WHERE l.first_offset <= l.last_offset LIMIT $4)
        ) y GROUP BY partition_id, queue_id
    ) x
    JOIN queen.queues q ON q.id = x.queue_id AND q.name IS NOT NULL
    ORDER BY x.turn LIMIT $4
)
SELECT e.examined, true AS is_whole, f.queue, f.partition, f.partition_id, f.transaction_id, f.created_at
FROM (SELECT count(*) AS examined FROM place) e
LEFT JOIN (
    SELECT place.queue, p.name AS partition, m.partition_id, m.transaction_id, m.created_at
    FROM place
    CROSS JOIN LATERAL (
        SELECT m.partition_id, m.transaction_id, m.created_at FROM queen.messages m
        WHERE m.partition_id = place.partition_id AND m.transaction_id >= $1 AND m.transaction_id < $1 || chr(1114111)
        ORDER BY m.transaction_id LIMIT $2
    ) m
    CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = m.partition_id LIMIT 1) p
    LIMIT $2
) f ON true
ORDER BY length(f.transaction_id), f.transaction_id
