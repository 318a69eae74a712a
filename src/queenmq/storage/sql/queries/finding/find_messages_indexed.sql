-- The same as find_messages.sql with the index messages_found_by_transaction: of up to $4 messages, whichever partitions they are in.
WITH candidate AS MATERIALIZED (
    SELECT m.partition_id, m.transaction_id, m.created_at FROM queen.messages m
    WHERE m.transaction_id >= $1 AND m.transaction_id < $1 || chr(1114111)
    ORDER BY m.transaction_id LIMIT $4
)
SELECT e.examined, true AS is_whole, f.queue, f.partition, f.partition_id, f.transaction_id, f.created_at
FROM (SELECT count(*) AS examined FROM candidate) e
LEFT JOIN (
    SELECT q.name AS queue, p.name AS partition, c.partition_id, c.transaction_id, c.created_at
    FROM candidate c
    CROSS JOIN LATERAL (SELECT p.name, p.queue_id FROM queen.partitions p WHERE p.id = c.partition_id LIMIT 1) p
    -- Also one probe each, so that only as many are looked up as are wanted, whatever the planner believes of $2.
    CROSS JOIN LATERAL (
        SELECT q.name FROM queen.queues q
        WHERE q.id = p.queue_id AND q.name IS NOT NULL AND ($3::text[] IS NULL OR q.name LIKE ANY ($3)) LIMIT 1
    ) q
    LIMIT $2
) f ON true
ORDER BY length(f.transaction_id), f.transaction_id
