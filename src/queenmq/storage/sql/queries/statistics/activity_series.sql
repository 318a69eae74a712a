-- What servers did between $1 and $2, in buckets of $3 minutes: of one queue ($4), of those of a namespace ($5) and task ($6), or of all.
WITH minutes AS (
    SELECT a.* FROM queen.activity a
    WHERE $4::text IS NULL AND $5::text IS NULL AND $6::text IS NULL AND a.queue_name = ''
      AND a.bucket >= $1 AND a.bucket <= $2 AND a.bucket > '-infinity'
    UNION ALL
    SELECT a.* FROM queen.queues q JOIN queen.activity a ON a.queue_name = q.name
    WHERE ($4::text IS NOT NULL OR $5::text IS NOT NULL OR $6::text IS NOT NULL)
      AND ($4::text IS NULL OR q.name = $4) AND ($5::text IS NULL OR q.namespace = $5) AND ($6::text IS NULL OR q.task = $6)
      AND a.bucket >= $1 AND a.bucket <= $2
)
SELECT date_bin(make_interval(mins => $3), m.bucket, '2000-01-01T00:00:00Z') AS bucket,
       sum(m.push_requests)::bigint AS push_requests, sum(m.push_messages)::bigint AS push_messages,
       sum(m.pop_requests)::bigint AS pop_requests, sum(m.pop_messages)::bigint AS pop_messages,
       sum(m.pop_empty)::bigint AS pop_empty, sum(m.ack_requests)::bigint AS ack_requests,
       sum(m.ack_success)::bigint AS ack_success, sum(m.ack_failed)::bigint AS ack_failed,
       sum(m.dead_lettered)::bigint AS dead_lettered, sum(m.transactions)::bigint AS transactions,
       sum(m.retained)::bigint AS retained, sum(m.evicted)::bigint AS evicted, sum(m.db_errors)::bigint AS db_errors, count(*) AS rows,
       sum(m.lag_count)::bigint AS lag_count, sum(m.lag_sum_ms) AS lag_sum_ms, max(m.lag_max_ms) AS lag_max_ms
FROM minutes m GROUP BY 1 ORDER BY 1
