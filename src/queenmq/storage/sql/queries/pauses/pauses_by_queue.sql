-- How many pauses each queue has that has some, those of breakers among them; at most $1 queues.
SELECT q.name, count(*) AS pauses
FROM (
    SELECT s.queue_id FROM queen.pauses s
    UNION ALL
    SELECT b.queue_id FROM queen.breakers b WHERE b.opened_at IS NOT NULL
) s
JOIN queen.queues q ON q.id = s.queue_id
WHERE q.name IS NOT NULL GROUP BY q.name ORDER BY q.name LIMIT $1
