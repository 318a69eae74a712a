-- The traces of a name ($1), newest first, with the messages that they are about.
SELECT t.id, t.event_type, t.data, t.consumer_group, t.worker_id, t.created_at, t.transaction_id, t.partition_id,
       array(SELECT o.name FROM queen.message_trace_names o WHERE o.trace_id = t.id ORDER BY o.name) AS names,
       q.name AS queue, p.name AS partition, m.payload, m.is_encrypted
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
