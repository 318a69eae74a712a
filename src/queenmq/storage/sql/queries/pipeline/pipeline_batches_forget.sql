-- Keep the newest two hundred batches.
DELETE FROM queen.pipeline_batches
WHERE name = $1::text AND ended_at < (
    SELECT ended_at FROM queen.pipeline_batches WHERE name = $1::text ORDER BY ended_at DESC OFFSET 199 LIMIT 1)
