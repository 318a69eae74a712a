-- How the servers were between $1 and $2, in buckets of $3 minutes: of each the last row; of one host ($4) and worker ($5), if given.
SELECT s.id AS server, b.bucket, x.hostname, x.port, x.worker_id, x.pid, x.samples, x.figures::text AS figures,
       x.bucket AS at
FROM queen.servers s
CROSS JOIN generate_series(date_bin(make_interval(mins => $3), $1::timestamptz, '2000-01-01T00:00:00Z'), $2::timestamptz,
                           make_interval(mins => $3)) AS b (bucket)
CROSS JOIN LATERAL (
    SELECT x.* FROM queen.server_samples x
    WHERE x.server = s.id AND x.bucket >= b.bucket AND x.bucket < b.bucket + make_interval(mins => $3)
    ORDER BY x.bucket DESC LIMIT 1
) x
WHERE ($4::text IS NULL OR x.hostname = $4) AND ($5::text IS NULL OR x.worker_id = $5)
ORDER BY s.id, b.bucket
