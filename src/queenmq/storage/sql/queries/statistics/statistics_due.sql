-- The queues whose figures are to be measured now: those of $1 (by name) and those not measured for $2 seconds, the longest first; but
-- none whose last walk was less than $3 times its own cost ago, so that large queues cannot take all the time.
SELECT q.id, q.name
FROM queen.queues q
LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
WHERE q.name IS NOT NULL AND (s.queue_id IS NULL
   OR ((q.name = ANY ($1) OR s.reckoned_at < clock_timestamp() - make_interval(secs => $2))
       AND s.reckoned_at < clock_timestamp() - make_interval(secs => $3 * s.cost_ms / 1000)))
ORDER BY s.reckoned_at NULLS FIRST
