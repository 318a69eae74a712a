-- The pauses of a queue ($1), or of all, the oldest first. $2: patterns of the queues, if not all may be seen.
SELECT q.name AS queue, nullif(s.consumer_group, '') AS consumer_group, nullif(s.partition_name, '') AS partition,
       s.paused_at, s.paused_by, s.reason
FROM queen.pauses s JOIN queen.queues q ON q.id = s.queue_id
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1) AND ($2::text[] IS NULL OR q.name LIKE ANY ($2))
ORDER BY s.paused_at, q.name, s.consumer_group, s.partition_name LIMIT $3
