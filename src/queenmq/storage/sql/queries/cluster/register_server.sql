-- A server starts: its boot epoch is greater than any that was given before. $2 to $5 say what it is (queen.server_versions).
WITH started AS (
    INSERT INTO queen.servers AS s (id, epoch) VALUES ($1, nextval('queen.versions'))
    ON CONFLICT (id) DO UPDATE
    SET epoch = greatest(excluded.epoch, s.epoch + 1), started_at = clock_timestamp(), seen_at = clock_timestamp()
    RETURNING id, epoch
)
INSERT INTO queen.server_versions (server_id, epoch, release, schema_version, function_set, alive_for)
SELECT id, epoch, $2::text, $3::integer, $4::text, make_interval(secs => $5::double precision) FROM started
ON CONFLICT (server_id) DO UPDATE
SET epoch = excluded.epoch, release = excluded.release, schema_version = excluded.schema_version,
    function_set = excluded.function_set, alive_for = excluded.alive_for, has_stopped = false
RETURNING epoch
