-- Groups that have partitions whose head has failed, and how many, the most first; up to $2, of one queue ($1) or all.
SELECT q.name AS queue, c.consumer_group, count(*) AS partitions, max(c.attempts) AS attempts
FROM queen.partition_consumers c
JOIN queen.queues q ON q.id = c.queue_id AND q.name IS NOT NULL
WHERE c.attempts > 0 AND ($1::text IS NULL OR q.name = $1)
GROUP BY q.name, c.consumer_group ORDER BY count(*) DESC, q.name, c.consumer_group LIMIT $2
