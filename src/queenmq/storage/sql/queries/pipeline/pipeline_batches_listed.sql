-- The newest batches of a pipeline, newest first.
SELECT ended_at, number, query, rows, seconds FROM queen.pipeline_batches WHERE name = $1::text ORDER BY ended_at DESC LIMIT $2::bigint
