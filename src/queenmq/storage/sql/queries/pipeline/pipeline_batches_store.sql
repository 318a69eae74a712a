-- Batches that have ended: so many seconds ago, their numbers, queries, rows and seconds.
INSERT INTO queen.pipeline_batches (name, ended_at, number, query, rows, seconds)
SELECT $1::text, clock_timestamp() - make_interval(secs => b.ago), b.number, b.query, b.rows, b.seconds
FROM unnest($2::float8[], $3::bigint[], $4::text[], $5::bigint[], $6::float8[]) AS b (ago, number, query, rows, seconds)
WHERE EXISTS (SELECT 1 FROM queen.pipelines WHERE name = $1::text)
