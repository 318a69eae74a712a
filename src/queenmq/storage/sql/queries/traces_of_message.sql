SELECT t.id, t.event_type, t.data, t.consumer_group, t.worker_id, t.created_at,
       array(SELECT n.name FROM queen.message_trace_names n WHERE n.trace_id = t.id ORDER BY n.name) AS names
FROM queen.message_traces t
JOIN queen.queues q ON q.id = t.queue_id AND q.name IS NOT NULL
WHERE t.partition_id = $1 AND t.transaction_id = $2
ORDER BY t.created_at, t.id LIMIT $3
