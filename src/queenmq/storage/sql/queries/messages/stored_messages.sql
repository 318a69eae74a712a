-- What is stored under these (queue, partition, transaction id), in order; nulls where nothing is.
SELECT p.id AS partition_id, m.id, m."offset"
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS t (queue, partition, transaction, i)
LEFT JOIN queen.queues q ON q.name = t.queue
LEFT JOIN queen.partitions p ON p.queue_id = q.id AND p.name = t.partition
LEFT JOIN queen.messages m ON m.partition_id = p.id AND m.transaction_id = t.transaction
ORDER BY t.i
