-- The heads of a queue's partitions as one row of arrays, by partition number: one snapshot, cheap for a hundred thousand.
SELECT coalesce(array_agg(p.number ORDER BY p.number), '{}'), coalesce(array_agg(l.first_offset ORDER BY p.number), '{}'),
       coalesce(array_agg(l.last_offset ORDER BY p.number), '{}')
FROM queen.partition_lookup l
JOIN queen.partitions p ON p.id = l.partition_id
WHERE l.queue_id = $1::uuid
