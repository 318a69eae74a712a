-- Where a group ($1) stands: up to $2 of its partitions, in each queue those first that have waited longest.
SELECT q.name AS queue, p.name AS partition, c.lease_id, c.last_consumed_at, c.total_consumed, c.position, c.attempts,
       c.lease_expires_at, c.lease_expires_at > clock_timestamp() AS leased, now.unread,
       coalesce(extract(epoch FROM clock_timestamp() - o.created_at), 0)::double precision AS time_lag_s
FROM (
    SELECT q.id, q.name FROM queen.consumer_groups g JOIN queen.queues q ON q.name = g.queue_name WHERE g.name = $1
    UNION
    SELECT q.id, q.name FROM queen.group_statistics s JOIN queen.queues q ON q.id = s.queue_id WHERE s.consumer_group = $1 AND q.name IS NOT NULL
    ORDER BY 2
) q
CROSS JOIN LATERAL (
    SELECT c.* FROM queen.partition_consumers c
    WHERE c.queue_id = q.id AND c.consumer_group = $1 ORDER BY c.ready_at LIMIT $2
) c
JOIN queen.partitions p ON p.id = c.partition_id
JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
CROSS JOIN LATERAL (
    SELECT greatest(0, l.last_offset - greatest(l.first_offset - 1, c.position) - queen.measure(c.done)) AS unread
) now
LEFT JOIN LATERAL (
    SELECT m.created_at FROM queen.messages m
    WHERE now.unread > 0 AND m.partition_id = c.partition_id AND m."offset" > c.position AND NOT c.done @> m."offset"
    ORDER BY m."offset" LIMIT 1
) o ON true
LIMIT $2
