-- Forget up to $3 consumers that have not popped for $1 days, or that are not among the $2 of their group in a queue that popped last, or
-- among the $4 of all that did; how many.
-- Locks them in their order; those that somebody is just noting are left for the next time.
WITH gone AS (
    SELECT c.queue_id, c.consumer_group, c.tag FROM queen.consumers c
    JOIN (
        SELECT k.queue_id, k.consumer_group, k.tag, k.seen_at,
               row_number() OVER (PARTITION BY k.queue_id, k.consumer_group ORDER BY k.seen_at DESC, k.tag) AS place,
               row_number() OVER (ORDER BY k.seen_at DESC, k.tag) AS place_of_all
        FROM queen.consumers k
    ) x ON x.queue_id = c.queue_id AND x.consumer_group = c.consumer_group AND x.tag = c.tag
    WHERE x.place > $2 OR x.place_of_all > $4 OR x.seen_at < now() - make_interval(days => $1)
    ORDER BY c.queue_id, c.consumer_group, c.tag LIMIT $3
    FOR UPDATE OF c SKIP LOCKED
), forgotten AS (
    DELETE FROM queen.consumers c USING gone g
    WHERE c.queue_id = g.queue_id AND c.consumer_group = g.consumer_group AND c.tag = g.tag RETURNING 1
)
SELECT count(*) FROM forgotten
