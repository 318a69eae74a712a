-- A page of partitions, of one queue ($1) by name or, without one, of all in the order of their ids, with their figures as they are now.
WITH page AS MATERIALIZED (
    (SELECT p.id, p.name, p.created_at, p.queue_id FROM queen.partitions p
     WHERE p.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1) ORDER BY p.name LIMIT $2 OFFSET $3)
    UNION ALL
    (SELECT p.id, p.name, p.created_at, p.queue_id FROM queen.partitions p
     WHERE $1::text IS NULL ORDER BY p.id LIMIT $2 OFFSET $3)
)
SELECT q.name AS queue, page.name, page.created_at, f.*
FROM queen.partition_figures((SELECT array_agg(id) FROM page)) f
JOIN page ON page.id = f.partition_id
JOIN queen.queues q ON q.id = page.queue_id AND q.name IS NOT NULL
ORDER BY q.name, page.name
