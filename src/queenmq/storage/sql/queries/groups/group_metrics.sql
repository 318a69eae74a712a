-- What Prometheus gets of groups: of up to $1 of them, those first whose messages have been due longest; of how many there are.
-- Consumers are those that have popped within two minutes.
SELECT g.*, f.failing, d.letters AS dead_letters, k.consumers
FROM (
    SELECT q.id AS queue_id, q.name AS queue, q.namespace, s.consumer_group, s.unread, s.lag, s.leases, s.consumed,
           coalesce(extract(epoch FROM clock_timestamp() - s.oldest_unread_at), 0)::double precision AS lag_s, count(*) OVER () AS groups
    FROM queen.group_statistics s JOIN queen.queues q ON q.id = s.queue_id AND q.name IS NOT NULL
    ORDER BY s.oldest_unread_at NULLS LAST, q.name, s.consumer_group LIMIT $1
) g
CROSS JOIN LATERAL (
    SELECT count(*) AS failing FROM queen.partition_consumers c
    WHERE c.queue_id = g.queue_id AND c.consumer_group = g.consumer_group AND c.attempts > 0
) f
CROSS JOIN LATERAL (
    SELECT coalesce(sum(d.letters), 0)::bigint AS letters FROM queen.dead_letter_counts d
    WHERE d.queue_id = g.queue_id AND d.consumer_group = g.consumer_group
) d
CROSS JOIN LATERAL (
    SELECT count(*) AS consumers FROM queen.consumers c
    WHERE c.queue_id = g.queue_id AND c.consumer_group = g.consumer_group AND c.seen_at > now() - interval '2 minutes'
) k
ORDER BY g.queue, g.consumer_group
