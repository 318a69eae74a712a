SELECT p.number, a.position FROM queen.archive_positions a
JOIN queen.partitions p ON p.id = a.partition_id
WHERE a.lake = $1::text AND p.queue_id = $2::uuid
