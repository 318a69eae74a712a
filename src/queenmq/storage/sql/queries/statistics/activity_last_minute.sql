-- What was done to each queue in the last whole minute, on all servers; up to $1 queues.
SELECT a.queue_name, max(a.bucket) AS bucket, sum(a.push_requests)::bigint AS push_requests, sum(a.push_messages)::bigint AS push_messages,
       sum(a.pop_messages)::bigint AS pop_messages, sum(a.pop_empty)::bigint AS pop_empty,
       sum(a.ack_success)::bigint AS ack_success, sum(a.ack_failed)::bigint AS ack_failed,
       sum(a.transactions)::bigint AS transactions, sum(a.lag_count)::bigint AS lag_count, sum(a.lag_sum_ms) AS lag_sum_ms,
       max(a.lag_max_ms) AS lag_max_ms,
       extract(epoch FROM now() - date_trunc('minute', now()))::double precision AS age_s
FROM queen.activity a
WHERE a.bucket = date_trunc('minute', now()) - interval '1 minute' AND a.queue_name <> ''
GROUP BY a.queue_name ORDER BY sum(a.push_messages + a.pop_messages) DESC, a.queue_name LIMIT $1
