-- The long polls that each server held for each queue between $1 and $2, in buckets of $3 minutes: of one queue ($4), or of those $5 that
-- have seen most in the last minutes of the range.
WITH chosen AS MATERIALIZED (
    SELECT $4::text AS name WHERE $4::text IS NOT NULL
    UNION ALL
    (SELECT a.queue_name FROM queen.activity a
     WHERE $4::text IS NULL AND a.queue_name <> '' AND a.parked > 0
       AND a.bucket >= greatest($1::timestamptz, $2::timestamptz - interval '3 minutes') AND a.bucket <= $2
     GROUP BY a.queue_name ORDER BY max(a.parked) DESC, a.queue_name LIMIT $5)
)
SELECT c.name AS queue_name, a.server, date_bin(make_interval(mins => $3), a.bucket, '2000-01-01T00:00:00Z') AS bucket,
       max(a.parked) AS parked
FROM chosen c JOIN queen.activity a ON a.queue_name = c.name AND a.bucket >= $1 AND a.bucket <= $2 AND a.parked > 0
GROUP BY 1, 2, 3 ORDER BY 3, 1, 2
