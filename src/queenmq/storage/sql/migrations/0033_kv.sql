-- Values that applications keep under a key of a namespace, and locks, whose holders are such values (namespace `lock:NAME`).
-- A version is given once, and grows with each change of any key: it is also the fencing number of a lock.
CREATE SEQUENCE queen.kv_versions;
CREATE TABLE queen.kv (
    namespace   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    version     bigint NOT NULL,
    expires_at  timestamptz,                    -- null: never. Who is past it is not there, also while its row is
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    value       json NOT NULL,
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 70);
CREATE INDEX kv_expires ON queen.kv (expires_at) WHERE expires_at IS NOT NULL;
