-- The newest messages among those at some positions ($2 numbers, $3 positions) of a queue's partitions.
SELECT p.number, m."offset", m.id, m.created_at
FROM unnest($2::bigint[], $3::bigint[]) AS t (number, position)
JOIN queen.partitions p ON p.queue_id = $1::uuid AND p.number = t.number
CROSS JOIN LATERAL (
    SELECT m."offset", m.id, m.created_at FROM queen.messages m
    WHERE m.partition_id = p.id AND m."offset" <= t.position ORDER BY m."offset" DESC LIMIT 1
) m
ORDER BY m.created_at DESC, p.number LIMIT $4::integer
