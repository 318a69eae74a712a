-- The next generation of a pipeline, for the driver that the holder of its lease is about to start. No row if the lease is lost, or the driver
-- before publishes at this moment.
WITH mine AS (
    SELECT name FROM queen.pipeline_leases WHERE name = $1::text AND holder = $2::uuid FOR UPDATE SKIP LOCKED
), next AS (
    UPDATE queen.pipeline_leases l SET generation = l.generation + 1 FROM mine WHERE l.name = mine.name RETURNING l.name, l.generation
), state AS (
    UPDATE queen.pipeline_states s
    SET state = 'starting', version = $3::bigint, started_at = clock_timestamp(), seen_at = clock_timestamp(), starts = s.starts + 1,
        next_start_at = NULL, rate = NULL
    FROM next n WHERE s.name = n.name
)
SELECT generation FROM next
