-- The newest schema of a queue ($1); no row if it has none.
SELECT s.version, s.schema
FROM queen.schema_rules r
JOIN queen.queues q ON q.id = r.queue_id
JOIN queen.schemas s ON s.queue_id = r.queue_id AND s.version = r.version
WHERE q.name = $1
