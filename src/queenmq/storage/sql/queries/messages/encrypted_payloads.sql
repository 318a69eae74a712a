-- The encrypted payloads of messages ($1: partitions, $2: offsets), and to which message each belongs. Of deleted queues there are none.
SELECT m.partition_id, m."offset", q.name AS queue, p.name AS partition, m.transaction_id, m.payload
FROM unnest($1::uuid[], $2::bigint[]) AS t (partition_id, "offset")
JOIN queen.messages m ON m.partition_id = t.partition_id AND m."offset" = t."offset"
JOIN queen.partitions p ON p.id = m.partition_id
JOIN queen.queues q ON q.id = p.queue_id AND q.name IS NOT NULL
WHERE m.is_encrypted
ORDER BY m.partition_id, m."offset"
