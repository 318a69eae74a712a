-- Queues with $1 (in lower case) in their name, those first that are called so or begin with it; up to $2, of those that fit the patterns $3.
SELECT q.name, q.namespace FROM queen.queues q
WHERE q.name IS NOT NULL AND strpos(lower(q.name), $1) > 0 AND ($3::text[] IS NULL OR q.name LIKE ANY ($3))
ORDER BY strpos(lower(q.name), $1) > 1, length(q.name), q.name LIMIT $2
