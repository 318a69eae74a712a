-- Tokens that Queen makes. Their texts are not stored, only their digests.
CREATE TABLE queen.tokens (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    digest        bytea NOT NULL UNIQUE,            -- SHA-256 of the text
    name          text NOT NULL,
    role          text NOT NULL CHECK (role IN ('read-only', 'read-write', 'admin')),
    grants        jsonb NOT NULL DEFAULT '[]',      -- what it is restricted to; empty: nothing but its role
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by    text,
    expires_at    timestamptz,
    revoked_at    timestamptz,
    last_used_at  timestamptz                       -- about: it is noted once an hour
);
CREATE INDEX tokens_created ON queen.tokens (created_at DESC, id);
