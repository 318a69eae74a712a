-- The options of these queues, or of all if there is no list; as JSON, because they go to other servers as they are.
SELECT q.name, q.version, (to_jsonb(q) - 'id' - 'name' - 'version' - 'created_at')::text AS options
FROM queen.queues q
WHERE q.name IS NOT NULL AND ($1::text[] IS NULL OR q.name = ANY ($1))
