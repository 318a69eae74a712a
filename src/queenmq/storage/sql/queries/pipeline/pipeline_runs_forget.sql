-- Keep the newest hundred runs of a declared pipeline.
DELETE FROM queen.pipeline_runs WHERE id IN (
    SELECT id FROM queen.pipeline_runs WHERE job = $2::text AND options ->> 'pipeline' = $1::text ORDER BY started_at DESC OFFSET 100)
