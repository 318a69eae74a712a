-- The keys of a queue ($1), from $4 on, that have rows of a group ($2) awake, up to $3 of them, how many partitions of each are ready (up to $5), and for how many seconds
-- limits allow nothing to these (null: they do; see queen.key_full_for); is_limited: there are limits of keys. Jumps from key to key, so its cost is by keys and not by partitions. What lies below the floor (see queen.move_ready_floor) are old versions, which are not visited.
WITH RECURSIVE place AS MATERIALIZED (
    SELECT q.id, clock_timestamp() AS now, coalesce((
        SELECT CASE WHEN f.floor <= clock_timestamp() AND f.moved_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() THEN f.floor END
        FROM (
            SELECT x.floor, x.moved_at FROM queen.ready_floors x
            WHERE x.queue_id = q.id AND x.consumer_group = $2 ORDER BY x.generation DESC LIMIT 1
        ) f), '-infinity') AS floor,
        EXISTS (SELECT 1 FROM queen.limits l
                WHERE l.queue_id = q.id AND l.consumer_group IN ('', $2) AND coalesce(l.key_leases, l.key_rate) IS NOT NULL) AS limited
    FROM queen.queues q WHERE q.name = $1
), keys AS (
    (SELECT c.fair_key FROM place p CROSS JOIN LATERAL (
        SELECT x.fair_key FROM queen.partition_consumers x
        WHERE x.queue_id = p.id AND x.consumer_group = $2 AND x.fair_key >= $4 AND x.ready_at >= p.floor ORDER BY x.fair_key LIMIT 1
    ) c)
    UNION ALL
    SELECT c.fair_key FROM keys k CROSS JOIN place p CROSS JOIN LATERAL (
        SELECT x.fair_key FROM queen.partition_consumers x
        WHERE x.queue_id = p.id AND x.consumer_group = $2 AND x.fair_key > k.fair_key AND x.ready_at >= p.floor ORDER BY x.fair_key LIMIT 1
    ) c
)
SELECT k.fair_key, r.ready, CASE WHEN p.limited AND r.ready > 0 THEN queen.key_full_for(p.id, $2, k.fair_key, true) END AS full_for_s, p.limited AS is_limited
FROM (SELECT fair_key FROM keys LIMIT $3) k CROSS JOIN place p
CROSS JOIN LATERAL (
    SELECT count(*) AS ready FROM (
        SELECT 1 FROM queen.partition_consumers c
        WHERE c.queue_id = p.id AND c.consumer_group = $2 AND c.fair_key = k.fair_key AND c.ready_at >= p.floor AND c.ready_at <= p.now LIMIT $5
    ) x
    OFFSET 0
) r
