-- Forget up to $3 consumers that have not popped for $1 days, or that are not among the $2 of their group in a queue that popped last.
DELETE FROM queen.consumers c
USING (
    SELECT x.queue_id, x.consumer_group, x.tag FROM (
        SELECT k.queue_id, k.consumer_group, k.tag, k.seen_at,
               row_number() OVER (PARTITION BY k.queue_id, k.consumer_group ORDER BY k.seen_at DESC) AS place
        FROM queen.consumers k
    ) x
    WHERE x.place > $2 OR x.seen_at < now() - make_interval(days => $1) LIMIT $3
) gone
WHERE c.queue_id = gone.queue_id AND c.consumer_group = gone.consumer_group AND c.tag = gone.tag
