-- Record a trace of a stored message; no row if there is no such message.
WITH message AS (
    SELECT p.queue_id, m.partition_id, m.transaction_id
    FROM queen.messages m
    JOIN queen.partitions p ON p.id = m.partition_id
    JOIN queen.queues q ON q.id = p.queue_id
    WHERE m.partition_id = $1 AND m.transaction_id = $2 AND q.name IS NOT NULL
    FOR KEY SHARE OF q
), trace AS (
    INSERT INTO queen.message_traces (queue_id, partition_id, transaction_id, consumer_group, event_type, data, worker_id)
    SELECT queue_id, partition_id, transaction_id, $3, $4, $5, $6 FROM message
    RETURNING id
), names AS (
    INSERT INTO queen.message_trace_names (trace_id, name)
    SELECT DISTINCT trace.id, n.name FROM trace, unnest($7::text[]) AS n (name)
)
SELECT id FROM trace
