-- What was done to each queue between $1 and $2, in buckets of $3 minutes: to one ($4), or to those $5 that have seen most in the
-- last minutes of the range.
WITH chosen AS MATERIALIZED (
    SELECT $4::text AS name WHERE $4::text IS NOT NULL
    UNION ALL
    (SELECT a.queue_name FROM queen.activity a
     WHERE $4::text IS NULL AND a.queue_name <> '' AND a.bucket >= greatest($1::timestamptz, $2::timestamptz - interval '3 minutes') AND a.bucket <= $2
     GROUP BY a.queue_name ORDER BY sum(a.push_messages + a.pop_messages) DESC, a.queue_name LIMIT $5)
)
SELECT c.name AS queue_name, date_bin(make_interval(mins => $3), a.bucket, '2000-01-01T00:00:00Z') AS bucket,
       sum(a.push_requests)::bigint AS push_requests, sum(a.push_messages)::bigint AS push_messages,
       sum(a.pop_messages)::bigint AS pop_messages, sum(a.pop_empty)::bigint AS pop_empty,
       sum(a.ack_requests)::bigint AS ack_requests, sum(a.ack_success)::bigint AS ack_success,
       sum(a.ack_failed)::bigint AS ack_failed, sum(a.transactions)::bigint AS transactions,
       sum(a.lag_count)::bigint AS lag_count, sum(a.lag_sum_ms) AS lag_sum_ms, max(a.lag_max_ms) AS lag_max_ms,
       max(a.parked) AS parked, max(s.partitions) AS partitions
FROM chosen c
JOIN queen.activity a ON a.queue_name = c.name AND a.bucket >= $1 AND a.bucket <= $2
LEFT JOIN queen.queues q ON q.name = c.name
LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
GROUP BY 1, 2 ORDER BY 2, 1
