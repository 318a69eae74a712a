-- The policies, limits and fairness of a queue ($1), or of all. $2: patterns of the queues, if not all may be seen.
SELECT q.name AS queue, nullif(x.consumer_group, '') AS consumer_group, max(x.changed_at) AS changed_at,
       (array_agg(x.changed_by ORDER BY x.changed_at DESC))[1] AS changed_by,
       max(x.retry) AS retry, max(x.breaker) AS breaker, max(x.limits) AS limits, max(x.fairness) AS fairness
FROM (
    SELECT y.queue_id, y.consumer_group, y.changed_at, y.changed_by, y.retry, y.breaker, NULL AS limits, NULL AS fairness FROM queen.policies y
    UNION ALL
    SELECT l.queue_id, l.consumer_group, l.changed_at, l.changed_by, NULL, NULL, l.given, NULL FROM queen.limits l
    UNION ALL
    SELECT f.queue_id, '', f.changed_at, f.changed_by, NULL, NULL, NULL, f.given FROM queen.fairness f WHERE f.given IS NOT NULL
) x
JOIN queen.queues q ON q.id = x.queue_id
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1) AND ($2::text[] IS NULL OR q.name LIKE ANY ($2))
GROUP BY q.name, x.consumer_group ORDER BY q.name, x.consumer_group LIMIT $3
