-- The queue and the group of a lease ($1); a lease has only one of each.
SELECT q.name AS queue, c.consumer_group
FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id AND q.name IS NOT NULL
WHERE c.lease_id = $1 LIMIT 1
