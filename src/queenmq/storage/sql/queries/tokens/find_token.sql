-- The token with a digest ($1), and whether it may be used. That it is used is noted once an hour; that commit is not waited for on disk.
WITH found AS MATERIALIZED (
    SELECT t.*, t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp()) AS is_valid
    FROM queen.tokens t WHERE t.digest = $1
), due AS MATERIALIZED (
    SELECT f.id, set_config('synchronous_commit', 'off', true) FROM found f
    WHERE f.is_valid AND (f.last_used_at IS NULL OR f.last_used_at < clock_timestamp() - interval '1 hour')
), noted AS (
    UPDATE queen.tokens t SET last_used_at = clock_timestamp() FROM due WHERE t.id = due.id
)
SELECT f.id, f.name, f.role, f.grants::text AS grants, f.limits::text AS limits, f.created_at, f.created_by, f.expires_at, f.revoked_at, f.last_used_at, f.is_valid
FROM found f
