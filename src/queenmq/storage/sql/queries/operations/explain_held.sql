-- What waits in the operation queue for a queue ($1): for one partition of it ($2), or for all; by partition, the oldest first, $3 of them.
-- Reads what is open, which is bounded, and never what is completed.
WITH open AS MATERIALIZED (
    SELECT o.queue_name, o.partition_name, o.created_at, o.next_attempt_at, o.error
    FROM queen.operation_queue o WHERE o.status IN ('pending', 'processing')
)
SELECT o.partition_name AS partition, count(*) AS operations, min(o.created_at) AS oldest,
       -- Only the oldest of a partition is ever tried.
       max(o.error) FILTER (WHERE o.next_attempt_at IS NOT NULL) AS error,
       coalesce(bool_or(o.next_attempt_at = 'infinity'), false) AS is_blocked
FROM open o
WHERE o.queue_name = $1 AND ($2::text IS NULL OR o.partition_name = $2)
GROUP BY o.partition_name ORDER BY min(o.created_at) LIMIT $3
