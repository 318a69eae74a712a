-- The ids of these (queue, partition) pairs, in order; null for one that does not exist.
SELECT p.id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS t (queue, partition, i)
LEFT JOIN queen.queues q ON q.name = t.queue
LEFT JOIN LATERAL (
    SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.partition LIMIT 1
) p ON true
ORDER BY t.i
