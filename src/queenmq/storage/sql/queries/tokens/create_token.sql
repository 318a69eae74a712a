-- Make a token with the digest $1 that expires after $6 seconds, if given.
INSERT INTO queen.tokens (digest, name, role, grants, created_by, expires_at, limits)
VALUES ($1, $2, $3, $4::text::jsonb, $5, clock_timestamp() + make_interval(secs => $6::double precision), $7::text::jsonb)
RETURNING id, name, role, grants::text AS grants, limits::text AS limits, created_at, created_by, expires_at, revoked_at, last_used_at, true AS is_valid
