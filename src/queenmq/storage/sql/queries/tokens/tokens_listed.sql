-- A page of the tokens, newest first.
SELECT t.id, t.name, t.role, t.grants::text AS grants, t.limits::text AS limits, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.last_used_at,
       t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp()) AS is_valid
FROM queen.tokens t ORDER BY t.created_at DESC, t.id LIMIT $1 OFFSET $2
