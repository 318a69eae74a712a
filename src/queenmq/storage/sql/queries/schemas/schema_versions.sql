-- The versions of the schema of a queue ($1), the newest first, at most $2; without their texts.
SELECT s.version, s.created_at, s.created_by
FROM queen.schemas s
JOIN queen.queues q ON q.id = s.queue_id
WHERE q.name = $1
ORDER BY s.version DESC
LIMIT $2
