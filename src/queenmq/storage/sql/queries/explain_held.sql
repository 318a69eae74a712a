-- What waits in the operation queue for a queue ($1): for one partition of it ($2), or for all; by partition, the oldest first, $3 of them.
SELECT o.partition_name AS partition, count(*) AS operations, sum(cardinality(o.message_ids))::bigint AS messages,
       min(o.created_at) AS oldest
FROM queen.operation_queue o
WHERE o.status IN ('pending', 'processing') AND o.queue_name = $1 AND ($2::text IS NULL OR o.partition_name = $2)
GROUP BY o.partition_name ORDER BY min(o.created_at) LIMIT $3
