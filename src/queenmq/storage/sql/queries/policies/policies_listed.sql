-- The policies of a queue ($1), or of all. $2: patterns of the queues, if not all may be seen.
SELECT q.name AS queue, nullif(y.consumer_group, '') AS consumer_group, y.changed_at, y.changed_by, y.retry, y.breaker
FROM queen.policies y JOIN queen.queues q ON q.id = y.queue_id
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1) AND ($2::text[] IS NULL OR q.name LIKE ANY ($2))
ORDER BY q.name, y.consumer_group LIMIT $3
