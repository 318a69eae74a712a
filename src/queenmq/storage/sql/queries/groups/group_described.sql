-- Where a group ($1) stands: up to $2 of its partitions, in each queue those first that have waited longest. $3: whether a pop that says
-- nothing starts with new messages. $4: patterns of the queues, if not all may be seen.
SELECT q.name AS queue, q.lease_time_s, queen.retry_limit_of(q, $1) AS retry_limit, q.delayed_processing_s, q.window_buffer_s, q.ttl_s, clock_timestamp() AS now, c.*,
       (q.has_pauses OR q.has_policies) AND queen.is_paused(q.id, c.partition_id, $1) AS is_stopped, c.lease_expires_at > clock_timestamp() AS is_leased,
       coalesce(extract(epoch FROM clock_timestamp() - c.due_since), 0)::double precision AS time_lag_s
FROM (
    SELECT q.name FROM queen.consumer_groups g JOIN queen.queues q ON q.name = g.queue_name WHERE g.name = $1
    UNION
    SELECT q.name FROM queen.group_statistics s JOIN queen.queues q ON q.id = s.queue_id WHERE s.consumer_group = $1 AND q.name IS NOT NULL
    ORDER BY 1
) k
CROSS JOIN LATERAL (SELECT q.* FROM queen.queues q WHERE q.name = k.name AND ($4::text[] IS NULL OR q.name LIKE ANY ($4)) LIMIT 1) q
CROSS JOIN LATERAL queen.list_positions(q.id, $1, NULL, $3, $2) c
LIMIT $2
