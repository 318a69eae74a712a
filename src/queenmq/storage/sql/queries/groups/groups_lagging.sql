-- The partitions of groups whose oldest unread message has been due for at least $1 seconds, the oldest first; among those that the
-- statistics keep, with their state as it is now. What has been read meanwhile is left out. $3: whether a pop that says nothing starts with
-- new messages.
SELECT k.consumer_group, q.name AS queue, p.name AS partition, k.partition_id, s.lease_id, s.due, s.unread, s.next_created_at AS oldest_at,
       s.last_consumed_at, extract(epoch FROM clock_timestamp() - s.due_since)::double precision AS time_lag_s
FROM (
    SELECT * FROM queen.lagging_partitions
    WHERE oldest_unread_at <= now() - make_interval(secs => $1) ORDER BY oldest_unread_at LIMIT $2
) k
CROSS JOIN LATERAL (SELECT q.* FROM queen.queues q WHERE q.id = k.queue_id AND q.name IS NOT NULL LIMIT 1) q
CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = k.partition_id LIMIT 1) p
CROSS JOIN LATERAL queen.describe_position(q, k.partition_id, k.consumer_group,
                               queen.start_of(q.name, p.name, k.consumer_group, $3, clock_timestamp()), clock_timestamp()) s
WHERE s.due_since <= clock_timestamp() - make_interval(secs => $1)
ORDER BY s.due_since
