-- Groups whose messages an open window has kept back for more than $1 seconds beyond windowBuffer, because pushes keep it open: up to $2, the longest
-- first, each with the partition that waits longest. Reads the fifty groups of such queues that have most unread, and of each the twenty partitions
-- that were written last.
SELECT g.queue, g.consumer_group, s.partition, g.window_buffer_s, s.unread, extract(epoch FROM clock_timestamp() - s.next_created_at)::double precision AS open_for_s
FROM (
    SELECT g.queue_id, g.consumer_group, q.name AS queue, q.window_buffer_s, q
    FROM queen.queues q JOIN queen.group_statistics g ON g.queue_id = q.id
    WHERE q.window_buffer_s > 0 AND q.name IS NOT NULL AND g.unread > g.lag ORDER BY g.unread DESC LIMIT 50
) g
CROSS JOIN LATERAL (
    SELECT p.name AS partition, s.unread, s.next_created_at
    FROM (
        SELECT r.partition_id FROM queen.recent_partitions r WHERE r.queue_id = g.queue_id ORDER BY r.last_message_at DESC LIMIT 20
    ) r
    CROSS JOIN LATERAL (
        SELECT true FROM queen.partition_consumers c WHERE c.partition_id = r.partition_id AND c.consumer_group = g.consumer_group LIMIT 1
    ) c
    CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = r.partition_id LIMIT 1) p
    CROSS JOIN LATERAL queen.describe_position(g.q, r.partition_id, g.consumer_group, NULL, clock_timestamp()) s
    WHERE s.unread > 0 AND s.last_message_at > clock_timestamp() - make_interval(secs => g.window_buffer_s)
      AND s.next_created_at < clock_timestamp() - make_interval(secs => g.window_buffer_s + $1)
    ORDER BY s.next_created_at LIMIT 1
) s
ORDER BY s.next_created_at LIMIT $2
