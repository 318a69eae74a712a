-- The policies and limits of a queue ($1), or of all. $2: patterns of the queues, if not all may be seen.
SELECT q.name AS queue, nullif(x.consumer_group, '') AS consumer_group, x.changed_at, x.changed_by, x.retry, x.breaker, x.limits
FROM (
    SELECT coalesce(y.queue_id, l.queue_id) AS queue_id, coalesce(y.consumer_group, l.consumer_group) AS consumer_group, y.retry, y.breaker,
           l.given AS limits, greatest(y.changed_at, l.changed_at) AS changed_at,
           CASE WHEN l.changed_at > y.changed_at OR y.changed_at IS NULL THEN l.changed_by ELSE y.changed_by END AS changed_by
    FROM queen.policies y FULL JOIN queen.limits l ON l.queue_id = y.queue_id AND l.consumer_group = y.consumer_group
) x
JOIN queen.queues q ON q.id = x.queue_id
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1) AND ($2::text[] IS NULL OR q.name LIKE ANY ($2))
ORDER BY q.name, x.consumer_group LIMIT $3
