-- Queues that hold as much for their slowest group as maxSize allows, by the statistics, up to $1, each with the group that has most unread.
SELECT q.name AS queue, q.max_size, s.pending + s.processing AS size, g.consumer_group, g.unread
FROM queen.queues q
JOIN queen.queue_statistics s ON s.queue_id = q.id
LEFT JOIN LATERAL (
    SELECT g.consumer_group, g.unread FROM queen.group_statistics g WHERE g.queue_id = q.id ORDER BY g.unread DESC LIMIT 1
) g ON true
WHERE q.max_size > 0 AND q.name IS NOT NULL AND s.pending + s.processing >= q.max_size
ORDER BY q.name LIMIT $1
