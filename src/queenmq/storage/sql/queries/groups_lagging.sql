-- The partitions of groups whose oldest unread message is at least $1 seconds old, the oldest first; among those that the statistics
-- keep, with their state as it is now. What has been read meanwhile is left out.
SELECT k.consumer_group, q.name AS queue, p.name AS partition, k.partition_id, c.lease_id, now.unread, o.created_at AS oldest_at,
       c.last_consumed_at, extract(epoch FROM clock_timestamp() - o.created_at)::double precision AS time_lag_s
FROM (
    SELECT * FROM queen.lagging_partitions
    WHERE oldest_unread_at <= now() - make_interval(secs => $1) ORDER BY oldest_unread_at LIMIT $2
) k
JOIN queen.queues q ON q.id = k.queue_id AND q.name IS NOT NULL
JOIN queen.partitions p ON p.id = k.partition_id
JOIN queen.partition_lookup l ON l.partition_id = k.partition_id
JOIN queen.partition_consumers c ON c.partition_id = k.partition_id AND c.consumer_group = k.consumer_group
CROSS JOIN LATERAL (
    SELECT greatest(0, l.last_offset - greatest(l.first_offset - 1, c.position) - queen.measure(c.done)) AS unread
) now
CROSS JOIN LATERAL (
    SELECT m.created_at FROM queen.messages m
    WHERE m.partition_id = k.partition_id AND m."offset" > c.position AND NOT c.done @> m."offset"
    ORDER BY m."offset" LIMIT 1
) o
WHERE o.created_at <= clock_timestamp() - make_interval(secs => $1)
ORDER BY o.created_at
