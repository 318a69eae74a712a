-- Make the schema $6 the version $3 of a queue ($1, its id) that has version $2 (0: none), with the rules $4 and $5, by $7. With $3 = $2 only the
-- rules change. No row if somebody else has made a version since $2 was read. Every server is notified.
-- Locks: the row of the rules.
WITH kept AS (
    INSERT INTO queen.schema_rules (queue_id, version, compatibility, is_checked)
    SELECT q.id, $3::integer, $4, $5 FROM queen.queues q WHERE q.id = $1
    ON CONFLICT (queue_id) DO UPDATE
        SET version = excluded.version, compatibility = excluded.compatibility, is_checked = excluded.is_checked, changed_at = clock_timestamp()
        WHERE schema_rules.version = $2::integer
    RETURNING queue_id
), made AS (
    INSERT INTO queen.schemas (queue_id, version, schema, created_by)
    SELECT queue_id, $3::integer, $6, $7 FROM kept WHERE $3::integer > $2::integer
)
SELECT pg_notify('queen_schemas', '') FROM kept
