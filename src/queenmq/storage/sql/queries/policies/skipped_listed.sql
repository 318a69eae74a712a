-- The messages of a queue ($1), or of one group of it ($2), that are skipped or park their partition; the one that is due first, first. At most $3.
SELECT p.name AS partition, c.partition_id, c.consumer_group, m."offset", m.transaction_id, m.created_at, s.until, s.parks,
       queen.failed_attempts(c, m."offset") AS attempts
FROM queen.queues q
JOIN queen.partitions p ON p.queue_id = q.id
JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.skipped IS NOT NULL AND ($2::text IS NULL OR c.consumer_group = $2)
CROSS JOIN LATERAL unnest(c.skipped) AS s
JOIN queen.messages m ON m.partition_id = p.id AND s.offsets @> m."offset" AND m."offset" >= lower(s.offsets) AND m."offset" < upper(s.offsets)
WHERE q.name = $1 AND m."offset" > c.position AND NOT c.done @> m."offset"
ORDER BY s.until, p.name, m."offset" LIMIT $3
