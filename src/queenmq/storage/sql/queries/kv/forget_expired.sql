-- Remove up to $1 values that are past their end. Those that somebody is changing just now are left.
WITH gone AS (
    SELECT k.namespace, k.key FROM queen.kv k WHERE k.expires_at < clock_timestamp()
    ORDER BY k.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM queen.kv k USING gone g WHERE k.namespace = g.namespace AND k.key = g.key AND k.expires_at < clock_timestamp() RETURNING 1
)
SELECT count(*) FROM removed
