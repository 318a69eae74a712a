-- The messages of the oldest dead letters of a queue ($1), of a group ($2) and of partitions of a name ($3) if given, that failed at or
-- before $4. Locks nothing.
SELECT d.partition_id, d.transaction_id, count(*) AS letters
FROM (
    SELECT d.partition_id, d.transaction_id, d.failed_at FROM queen.dead_letter_queue d
    WHERE d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1)
      AND ($2::text IS NULL OR d.consumer_group = $2) AND ($3::text IS NULL OR d.partition_name = $3) AND d.failed_at <= $4
    ORDER BY d.failed_at LIMIT $5
) d
GROUP BY d.partition_id, d.transaction_id
ORDER BY min(d.failed_at), d.partition_id, d.transaction_id
