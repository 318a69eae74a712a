-- The newest schemas of the queues whose pushes are checked; without the texts of those ($1 ids of queues, $2 versions) that the caller has.
SELECT q.name, r.queue_id, r.version, CASE WHEN k.queue_id IS NULL THEN s.schema END AS schema
FROM queen.schema_rules r
JOIN queen.queues q ON q.id = r.queue_id
JOIN queen.schemas s ON s.queue_id = r.queue_id AND s.version = r.version
LEFT JOIN unnest($1::uuid[], $2::integer[]) AS k (queue_id, version) ON k.queue_id = r.queue_id AND k.version = r.version
WHERE r.is_checked
