-- What the supervisor that holds the lease says about a pipeline: its state, how often it failed in a row, in how many seconds it starts again,
-- and an error, which stays until another one comes.
UPDATE queen.pipeline_states s
SET state = $3::text, failures = $4::bigint, next_start_at = clock_timestamp() + make_interval(secs => $5::float8),
    error = coalesce($6::text, s.error), error_at = CASE WHEN $6::text IS NULL THEN s.error_at ELSE clock_timestamp() END
FROM queen.pipeline_leases l
WHERE s.name = $1::text AND l.name = s.name AND l.holder = $2::uuid
