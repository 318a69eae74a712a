UPDATE queen.pipeline_runs
SET state = $2, ended_at = clock_timestamp(), seen_at = clock_timestamp(), rows = $3, offsets = $4::jsonb,
    summary = $5::jsonb, error = $6
WHERE id = $1
