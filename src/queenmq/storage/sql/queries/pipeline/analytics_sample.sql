-- Where every group of a queue stands now, what is due (see queen.describe_position), and how long the last finished message of each partition took from its push, for those that were
-- finished since the moment.
SELECT c.consumer_group,
       sum(s.due)::bigint,
       sum(c.total_consumed)::bigint, sum(c.attempts)::bigint,
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY took.ms)
FROM queen.partition_consumers c
JOIN queen.queues q ON q.id = c.queue_id
CROSS JOIN LATERAL queen.describe_position(q, c.partition_id, c.consumer_group, NULL, clock_timestamp()) s
LEFT JOIN LATERAL (
    SELECT extract(epoch FROM c.last_consumed_at - m.created_at)::double precision * 1000 AS ms FROM queen.messages m
    WHERE c.last_consumed_at >= $2::timestamptz AND m.partition_id = c.partition_id AND m."offset" = c.position
) took ON true
WHERE q.name = $1::text
GROUP BY c.consumer_group
