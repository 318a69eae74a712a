-- The traces of a message ($2 in partition $1), oldest first, $3 at most. Data of up to $4 bytes in all; further is left out.
SELECT t.id, t.event_type, t.consumer_group, t.worker_id, t.created_at,
       array(SELECT n.name FROM queen.message_trace_names n WHERE n.trace_id = t.id ORDER BY n.name) AS names,
       CASE WHEN t.upto <= $4 THEN t.data END AS data, t.upto > $4 AS omitted
FROM (
SELECT t.*, sum(octet_length(t.data)) OVER (ORDER BY t.created_at, t.id ROWS UNBOUNDED PRECEDING) AS upto
FROM queen.message_traces t
JOIN queen.queues q ON q.id = t.queue_id AND q.name IS NOT NULL
WHERE t.partition_id = $1 AND t.transaction_id = $2
ORDER BY t.created_at, t.id LIMIT $3
) t
ORDER BY t.created_at, t.id
