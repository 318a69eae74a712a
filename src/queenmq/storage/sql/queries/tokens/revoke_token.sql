-- Revoke a token ($1), and tell every server at the commit.
WITH revoked AS (
    UPDATE queen.tokens SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = $1 RETURNING *
)
SELECT r.id, r.name, r.role, r.grants::text AS grants, r.limits::text AS limits, r.created_at, r.created_by, r.expires_at, r.revoked_at, r.last_used_at,
       false AS is_valid, pg_notify('queen_tokens', r.id::text)
FROM revoked r
