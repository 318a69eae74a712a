-- A version ($2; null: the newest) of the schema of a queue ($1), with the rules of the queue.
SELECT q.name AS queue, s.version, r.version AS newest, r.compatibility, r.is_checked AS check, s.schema, s.created_at, s.created_by
FROM queen.schema_rules r
JOIN queen.queues q ON q.id = r.queue_id
JOIN queen.schemas s ON s.queue_id = q.id AND s.version = coalesce($2, r.version)
WHERE q.name = $1
