-- Remove what these attempts have staged, unless it is decided that it counts.
WITH gone AS (
    DELETE FROM queen.pipeline_attempts WHERE attempt = ANY ($1::bigint[])
)
DELETE FROM queen.pipeline_chunks WHERE attempt = ANY ($1::bigint[]) AND promotion IS NULL
