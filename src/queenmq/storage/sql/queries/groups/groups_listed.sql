-- A page of the groups, one row a (group, queue), from the statistics and the subscriptions; with $3 in the name, of the queue $4, of queues
-- that fit the patterns $5.
WITH known AS (
    SELECT g.consumer_group AS name, q.name AS queue FROM queen.group_statistics g
    JOIN queen.queues q ON q.id = g.queue_id AND q.name IS NOT NULL
    UNION
    SELECT g.name, g.queue_name FROM queen.consumer_groups g
)
SELECT k.name, k.queue, s.partitions, coalesce(s.lagging, 0) AS lagging, s.lag, s.unread, coalesce(s.leases, 0) AS leases,
       coalesce(extract(epoch FROM clock_timestamp() - s.oldest_unread_at), 0)::double precision AS time_lag_s,
       extract(epoch FROM clock_timestamp() - s.last_consumed_at)::double precision AS consumed_ago_s,
       s.last_consumed_at, g.mode, g.created_at, s.queue_id IS NOT NULL OR q.id IS NOT NULL AS lives,
       -- A time that was written by hand may be one that only PostgreSQL can represent.
       least(greatest(g.since, '0001-01-01 00:00+00'), '9999-12-31 00:00+00') AS since
FROM known k
LEFT JOIN queen.queues q ON q.name = k.queue
LEFT JOIN queen.group_statistics s ON s.queue_id = q.id AND s.consumer_group = k.name
LEFT JOIN queen.consumer_groups g ON g.queue_name = k.queue AND g.name = k.name
WHERE ($3::text IS NULL OR strpos(lower(k.name), lower($3)) > 0) AND ($4::text IS NULL OR k.queue = $4)
  AND ($5::text[] IS NULL OR k.queue LIKE ANY ($5))
ORDER BY k.name, k.queue LIMIT $1 OFFSET $2
