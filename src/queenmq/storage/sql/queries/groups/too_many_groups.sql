-- Whether a group ($3) would be one too many: the queue ($1), or the partition ($2) of it that is named, has $4 others.
SELECT NOT EXISTS (SELECT 1 FROM queen.consumer_groups g WHERE g.queue_name = $1 AND g.name = $3) AND CASE
    WHEN $2::text IS NULL THEN (
        SELECT count(*) FROM (SELECT 1 FROM queen.consumer_groups g WHERE g.queue_name = $1 LIMIT $4) others)
    ELSE (
        SELECT count(*) FROM (
            SELECT 1 FROM queen.queues q
            JOIN queen.partitions p ON p.queue_id = q.id AND p.name = $2
            JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group <> $3
            WHERE q.name = $1 LIMIT $4) others)
    END >= $4::integer
