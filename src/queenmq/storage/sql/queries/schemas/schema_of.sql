-- A queue ($1) with its newest schema and the rules for it, which are null if it has none; no row without the queue. Beside them, how
-- many bytes the schemas of all other queues have that are checked.
SELECT q.id, r.version, r.compatibility, r.is_checked, s.schema, (
    SELECT coalesce(sum(octet_length(o.schema)), 0)::bigint
    FROM queen.schema_rules c JOIN queen.schemas o ON o.queue_id = c.queue_id AND o.version = c.version
    WHERE c.is_checked AND c.queue_id <> q.id
) AS checked_bytes
FROM queen.queues q
LEFT JOIN queen.schema_rules r ON r.queue_id = q.id
LEFT JOIN queen.schemas s ON s.queue_id = q.id AND s.version = r.version
WHERE q.name = $1
