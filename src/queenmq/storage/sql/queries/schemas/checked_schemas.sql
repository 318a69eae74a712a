-- The newest schemas of the queues whose pushes are checked; without the texts of those ($1 ids of queues, $2 versions, $3 when they were made) that
-- the caller has. A queue whose schema is removed begins anew with version 1, so the number alone does not say which text it is.
SELECT q.name, r.queue_id, r.version, s.created_at, CASE WHEN k.queue_id IS NULL THEN s.schema END AS schema
FROM queen.schema_rules r
JOIN queen.queues q ON q.id = r.queue_id
JOIN queen.schemas s ON s.queue_id = r.queue_id AND s.version = r.version
LEFT JOIN unnest($1::uuid[], $2::integer[], $3::timestamptz[]) AS k (queue_id, version, created_at)
       ON k.queue_id = r.queue_id AND k.version = r.version AND k.created_at = s.created_at
WHERE r.is_checked
