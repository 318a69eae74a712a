-- The newest versions of a pipeline, newest first.
SELECT version, declaration::text AS declaration, state_number, applied_at
FROM queen.pipeline_versions WHERE name = $1::text ORDER BY version DESC LIMIT $2::bigint
