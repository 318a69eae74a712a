-- Namespaces of keys from $1 up to $2 that are behind $3, at most $4, by name, with how many of the first $5 keys are there, and whether
-- there are more than those. `is_visible`: the name, from the character $7 on, fits one of the patterns $6, or these are null; the
-- keys of others are not counted.
-- One descent of the index for each namespace, and not a row for each key.
WITH RECURSIVE found (namespace, place) AS (
    SELECT (SELECT k.namespace FROM queen.kv k WHERE k.namespace >= $1 AND k.namespace <= $2 AND k.namespace > $3 ORDER BY k.namespace LIMIT 1), 1
    UNION ALL
    SELECT (SELECT k.namespace FROM queen.kv k WHERE k.namespace > f.namespace AND k.namespace <= $2 ORDER BY k.namespace LIMIT 1), f.place + 1
    FROM found f WHERE f.namespace IS NOT NULL AND f.place < $4
)
SELECT f.namespace, c.keys, c.seen > $5 AS has_more, v.is_visible
FROM found f
CROSS JOIN LATERAL (SELECT $6::text[] IS NULL OR substr(f.namespace, $7) LIKE ANY ($6) AS is_visible) v
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE s.expires_at IS NULL OR s.expires_at > clock_timestamp()) AS keys, count(*) AS seen
    FROM (SELECT k.expires_at FROM queen.kv k WHERE k.namespace = f.namespace AND v.is_visible ORDER BY k.key LIMIT $5::int + 1) s
) c
WHERE f.namespace IS NOT NULL ORDER BY f.namespace
