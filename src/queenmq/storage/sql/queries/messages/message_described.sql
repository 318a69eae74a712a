-- One message ($1 is its partition, $2 its transaction id), or what the dead letters have of it.
SELECT x.id, x.transaction_id, x.partition_id, x."offset", q.name AS queue, p.name AS partition, q.namespace, q.task, x.payload,
       x.is_encrypted, x.trace_id, x.producer_sub, x.headers, x.created_at, d.error_message, greatest(d.attempts, f.attempts, 0) AS retry_count,
       q.lease_time_s, q.retry_limit, q.retry_delay_ms, q.ttl_s, q.priority, s.*
FROM (
    SELECT m.id, m.transaction_id, m.partition_id, m."offset", m.payload, m.is_encrypted, m.trace_id, m.producer_sub, m.headers,
           m.created_at, 1 AS choice
    FROM queen.messages m WHERE m.partition_id = $1 AND m.transaction_id = $2
    UNION ALL
    SELECT d.message_id, d.transaction_id, d.partition_id, d."offset", d.payload, d.is_encrypted, d.trace_id, d.producer_sub, d.headers,
           d.created_at, 2
    FROM queen.dead_letter_queue d WHERE d.partition_id = $1 AND d.transaction_id = $2
    ORDER BY choice, "offset" DESC LIMIT 1
) x
JOIN queen.partitions p ON p.id = x.partition_id
JOIN queen.queues q ON q.id = p.queue_id AND q.name IS NOT NULL
CROSS JOIN LATERAL (
    SELECT (array_agg(d.error_message ORDER BY d.failed_at DESC))[1] AS error_message, max(coalesce(d.attempts, d.retry_count)) AS attempts
    FROM queen.dead_letter_queue d WHERE d.partition_id = $1 AND d.transaction_id = $2 AND d."offset" = x."offset"
) d
CROSS JOIN LATERAL (
    SELECT max(queen.failed_attempts(c, x."offset")) AS attempts FROM queen.partition_consumers c WHERE c.partition_id = $1
) f
CROSS JOIN LATERAL queen.message_state(x.partition_id, x."offset", x.transaction_id) s
