-- A page of the groups, one row a (group, queue), from the statistics and the subscriptions; with $3 in the name, of the queue $4, of queues
-- that fit the patterns $5; with $7, only those with unread messages (`unread`), messages that are due (`due`) or that have been due for more
-- than $8 seconds (`behind`), leases (`leased`), failing heads (`failing`) or dead letters (`dead_letters`). By name, or with $6 the worst first:
-- `lag`, `unread`, `leased`, `failing`, `dead_letters`. `total` counts those on all pages; the rate is that of half a minute or more.
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
       -- A time that was written by hand may be one that only PostgreSQL can represent; an infinite one is no moment.
       CASE WHEN isfinite(g.since) THEN least(greatest(g.since, '0001-01-01 00:00+00'), '9999-12-31 00:00+00') END AS since,
       coalesce(s.consumed, 0) AS consumed,
       -- A queue in which nothing happens is measured less often.
       CASE WHEN s.last_consumed_at > clock_timestamp() - interval '2 minutes' OR s.finished_per_s IS NULL THEN s.finished_per_s ELSE 0 END AS finished_per_s,
       f.failing, d.letters AS dead_letters, count(*) OVER () AS total,
       EXISTS (SELECT 1 FROM queen.pauses p
               WHERE p.queue_id = q.id AND p.consumer_group IN ('', k.name) AND p.partition_name = '')
           OR EXISTS (SELECT 1 FROM queen.breakers b
                      WHERE b.queue_id = q.id AND b.consumer_group = k.name AND b.opened_at IS NOT NULL
                        AND b.probe_at > clock_timestamp()) AS is_paused
FROM known k
LEFT JOIN queen.queues q ON q.name = k.queue
LEFT JOIN queen.group_statistics s ON s.queue_id = q.id AND s.consumer_group = k.name
LEFT JOIN queen.consumer_groups g ON g.queue_name = k.queue AND g.name = k.name
CROSS JOIN LATERAL (
    SELECT count(*) AS failing FROM queen.partition_consumers c WHERE c.queue_id = q.id AND c.consumer_group = k.name AND c.attempts > 0
) f
CROSS JOIN LATERAL (
    SELECT coalesce(sum(d.letters), 0)::bigint AS letters FROM queen.dead_letter_counts d WHERE d.queue_id = q.id AND d.consumer_group = k.name
) d
WHERE ($3::text IS NULL OR strpos(lower(k.name), lower($3)) > 0) AND ($4::text IS NULL OR k.queue = $4)
  AND ($5::text[] IS NULL OR k.queue LIKE ANY ($5))
  AND CASE $7::text WHEN 'unread' THEN s.unread > 0 WHEN 'due' THEN s.lag > 0 WHEN 'failing' THEN f.failing > 0
      WHEN 'leased' THEN s.leases > 0 WHEN 'dead_letters' THEN d.letters > 0
      WHEN 'behind' THEN s.lag > 0 AND s.oldest_unread_at < clock_timestamp() - make_interval(secs => $8) ELSE true END
ORDER BY CASE $6::text WHEN 'lag' THEN extract(epoch FROM clock_timestamp() - s.oldest_unread_at)::double precision
                       WHEN 'unread' THEN s.unread WHEN 'leased' THEN s.leases WHEN 'failing' THEN f.failing WHEN 'dead_letters' THEN d.letters END DESC NULLS LAST,
         k.name, k.queue LIMIT $1 OFFSET $2
