-- The encrypted payloads of dead letters ($1: their ids), and to which message each belongs. Of deleted queues there are none.
SELECT d.id, q.name AS queue, d.partition_name AS partition, d.transaction_id, d.payload
FROM unnest($1::uuid[]) AS t (id)
JOIN queen.dead_letter_queue d ON d.id = t.id
JOIN queen.queues q ON q.id = d.queue_id AND q.name IS NOT NULL
WHERE d.is_encrypted
ORDER BY d.id
