-- One queue with its options and the figures that the statistics have of it; zeros if they have not counted it yet.
SELECT q.*, s.queue_id IS NOT NULL AS is_counted, coalesce(s.total, 0) AS total, coalesce(s.pending, 0) AS pending,
       coalesce(s.processing, 0) AS processing, coalesce(s.total - s.pending - s.processing, 0) AS completed,
       coalesce(s.failed, 0) AS failed, coalesce(s.dead_letters, 0) AS dead_letters
FROM queen.queues q LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
WHERE q.name = $1
