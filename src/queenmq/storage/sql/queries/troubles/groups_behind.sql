-- Groups in queues whose messages have been due for more than $1 seconds, up to $2, the longest first, by the statistics; of each the partition that
-- waits longest (one whose head fails only if there is no other) as it is now, and the consumer that popped last. What has been read meanwhile is
-- left out. $3: whether a pop that says nothing starts with new messages.
SELECT q.name AS queue, k.consumer_group, k.lagging AS partitions, q.lease_time_s,
       queen.retry_limit_of(q, k.consumer_group) AS retry_limit, q.delayed_processing_s, q.window_buffer_s, q.ttl_s, clock_timestamp() AS now, s.*,
       (q.has_pauses OR q.has_policies) AND queen.is_paused(q.id, s.partition_id, k.consumer_group) AS is_stopped,
       s.lease_expires_at > clock_timestamp() AS is_leased, extract(epoch FROM clock_timestamp() - s.due_since)::double precision AS time_lag_s,
       c.tag IS NOT NULL AS is_known, c.name AS reader, c.host, c.process, c.address, c.subject,
       extract(epoch FROM clock_timestamp() - c.seen_at)::double precision AS seen_ago_s,
       extract(epoch FROM clock_timestamp() - k.last_consumed_at)::double precision AS finished_ago_s
FROM (
    SELECT * FROM queen.group_statistics g
    WHERE g.lag > 0 AND g.oldest_unread_at < now() - make_interval(secs => $1) ORDER BY g.oldest_unread_at LIMIT $2
) k
CROSS JOIN LATERAL (SELECT q.* FROM queen.queues q WHERE q.id = k.queue_id AND q.name IS NOT NULL LIMIT 1) q
CROSS JOIN LATERAL (
    SELECT s.*, p.name AS partition, x.partition_id FROM (
        SELECT x.partition_id FROM queen.lagging_partitions x
        WHERE x.queue_id = k.queue_id AND x.consumer_group = k.consumer_group ORDER BY x.oldest_unread_at LIMIT 5
    ) x
    CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = x.partition_id LIMIT 1) p
    CROSS JOIN LATERAL queen.describe_position(q, x.partition_id, k.consumer_group,
                                   queen.start_of(q.name, p.name, k.consumer_group, $3, clock_timestamp()), clock_timestamp()) s
    WHERE s.due_since <= clock_timestamp() - make_interval(secs => $1) ORDER BY s.attempts > 0, s.due_since LIMIT 1
) s
LEFT JOIN LATERAL (
    SELECT * FROM queen.consumers c WHERE c.queue_id = k.queue_id AND c.consumer_group = k.consumer_group ORDER BY c.seen_at DESC LIMIT 1
) c ON true
ORDER BY s.due_since
