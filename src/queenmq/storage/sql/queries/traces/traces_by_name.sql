-- The traces of a name ($1), newest first, with the messages that they are about. Data and payloads of up to $4 bytes in all;
-- further ones are left out.
SELECT x.id, x.event_type, x.consumer_group, x.worker_id, x.created_at, x.transaction_id, x.partition_id, x.names, x.queue,
       x.partition, x.is_encrypted, CASE WHEN x.upto <= $4 THEN x.data END AS data,
       CASE WHEN x.upto <= $4 THEN x.payload END AS payload, x.upto > $4 AS omitted
FROM (
SELECT t.id, t.event_type, t.data, t.consumer_group, t.worker_id, t.created_at, t.transaction_id, t.partition_id,
       array(SELECT o.name FROM queen.message_trace_names o WHERE o.trace_id = t.id ORDER BY o.name) AS names,
       q.name AS queue, p.name AS partition, m.payload, m.is_encrypted, n.created_at AS named_at,
       sum(octet_length(t.data) + coalesce(octet_length(m.payload), 0))
           OVER (ORDER BY n.created_at DESC, t.id ROWS UNBOUNDED PRECEDING) AS upto
FROM (
    SELECT n.trace_id, n.created_at FROM queen.message_trace_names n
    WHERE n.name = $1 ORDER BY n.created_at DESC LIMIT $2 OFFSET $3
) n
JOIN queen.message_traces t ON t.id = n.trace_id
JOIN queen.partitions p ON p.id = t.partition_id
JOIN queen.queues q ON q.id = t.queue_id AND q.name IS NOT NULL
LEFT JOIN LATERAL (
    SELECT m.payload, m.is_encrypted FROM queen.messages m
    WHERE m.partition_id = t.partition_id AND m.transaction_id = t.transaction_id LIMIT 1
) m ON true
ORDER BY n.created_at DESC, t.id
) x
ORDER BY x.named_at DESC, x.id
