-- The queues with dead letters, the most first; from the statistics.
SELECT q.name, s.dead_letters AS letters FROM queen.queue_statistics s JOIN queen.queues q ON q.id = s.queue_id
WHERE q.name IS NOT NULL AND s.dead_letters > 0 ORDER BY s.dead_letters DESC, q.name LIMIT $1
