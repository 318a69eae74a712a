-- The queues of partitions ($1), also of such as are gone while dead letters or traces of them are left.
SELECT x.id, q.name AS queue
FROM unnest($1::uuid[]) AS x (id)
CROSS JOIN LATERAL (
    SELECT coalesce(
        (SELECT p.queue_id FROM queen.partitions p WHERE p.id = x.id),
        (SELECT d.queue_id FROM queen.dead_letter_queue d WHERE d.partition_id = x.id LIMIT 1),
        (SELECT t.queue_id FROM queen.message_traces t WHERE t.partition_id = x.id LIMIT 1)) AS queue_id
) f
JOIN queen.queues q ON q.id = f.queue_id AND q.name IS NOT NULL
