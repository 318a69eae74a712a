-- One queue with its options and the figures that the statistics have of it.
SELECT q.*, s.partitions, s.total, s.pending, s.processing, s.total - s.pending - s.processing AS completed, s.failed,
       s.dead_letters, s.consumed, s.reckoned_at
FROM queen.queues q LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
WHERE q.name = $1
