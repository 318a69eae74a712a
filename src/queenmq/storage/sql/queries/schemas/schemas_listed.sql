-- The queues that have a schema, by name, behind $2, at most $3; only those whose names are LIKE one of $1, if that is not null.
SELECT q.name AS queue, r.version, r.compatibility, r.is_checked AS check, r.changed_at
FROM queen.schema_rules r
JOIN queen.queues q ON q.id = r.queue_id
WHERE ($1::text[] IS NULL OR q.name LIKE ANY ($1)) AND q.name > $2
ORDER BY q.name
LIMIT $3
