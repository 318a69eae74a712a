-- A page of the queues by name with the figures that the statistics have of them; of a namespace ($1), a task ($2), with $3 in the name,
-- or fitting the patterns $6; with $8, only those with messages that a group has not finished (`unread`), that are due (`due`), under leases
-- (`leased`), with failing heads (`failing`) or dead letters (`dead_letters`). By name, or with $7 the worst first: `pending`, `leased`, `failing`,
-- `dead_letters`, `lag`. Rates are of the last whole minute.
SELECT q.id, q.name, q.namespace, q.task, q.created_at, coalesce(s.partitions, 0) AS partitions,
       coalesce(s.total, 0) AS total, coalesce(s.pending, 0) AS pending, coalesce(s.processing, 0) AS processing,
       coalesce(s.consumed, 0) AS consumed, coalesce(s.failed, 0) AS failing, d.letters AS dead_letters, g.leases,
       coalesce(extract(epoch FROM clock_timestamp() - g.oldest), 0)::double precision AS time_lag_s,
       coalesce(a.pushed / 60.0, 0)::double precision AS pushed_per_s, coalesce(a.popped / 60.0, 0)::double precision AS popped_per_s
FROM queen.queues q
LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
LEFT JOIN (
    SELECT a.queue_name, sum(a.push_messages) AS pushed, sum(a.pop_messages) AS popped FROM queen.activity a
    WHERE a.bucket = date_trunc('minute', now()) - interval '1 minute' AND a.queue_name <> '' GROUP BY a.queue_name
) a ON a.queue_name = q.name
CROSS JOIN LATERAL (
    SELECT min(x.oldest_unread_at) AS oldest, coalesce(sum(x.leases), 0)::bigint AS leases, sum(x.lag) AS due FROM queen.group_statistics x WHERE x.queue_id = q.id
) g
CROSS JOIN LATERAL (
    SELECT coalesce(sum(x.letters), 0)::bigint AS letters FROM queen.dead_letter_counts x WHERE x.queue_id = q.id
) d
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.task = $2)
  AND ($3::text IS NULL OR strpos(lower(q.name), lower($3)) > 0)
  AND ($6::text[] IS NULL OR q.name LIKE ANY ($6))
  AND CASE $8::text WHEN 'unread' THEN s.pending + s.processing > 0 WHEN 'due' THEN g.due > 0 WHEN 'leased' THEN g.leases > 0
      WHEN 'failing' THEN s.failed > 0 WHEN 'dead_letters' THEN d.letters > 0 ELSE true END
ORDER BY CASE $7::text WHEN 'pending' THEN s.pending WHEN 'leased' THEN g.leases WHEN 'failing' THEN s.failed WHEN 'dead_letters' THEN d.letters
                       WHEN 'lag' THEN extract(epoch FROM clock_timestamp() - g.oldest)::double precision END DESC NULLS LAST,
         q.name LIMIT $4 OFFSET $5
