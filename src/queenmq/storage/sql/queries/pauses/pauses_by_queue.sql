-- How many pauses each queue has that has some; at most $1 queues.
SELECT q.name, count(*) AS pauses FROM queen.pauses s JOIN queen.queues q ON q.id = s.queue_id
WHERE q.name IS NOT NULL GROUP BY q.name ORDER BY q.name LIMIT $1
