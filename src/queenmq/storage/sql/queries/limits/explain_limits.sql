-- The limits of a queue ($1, its id) and of a group of it ($2), and those of the keys of some of its partitions ($3): what is used of them, and when that
-- changes by itself.
SELECT nullif(l.consumer_group, '') AS consumer_group, NULL AS partition, NULL AS key, l.leases, s.used, s.ends_at, l.rate, t.tokens,
       CASE WHEN t.tokens < 1 THEN clock_timestamp() + make_interval(secs => (1 - t.tokens) / l.rate) END AS refilled_at
FROM queen.limits l
LEFT JOIN LATERAL (
    SELECT count(*)::integer AS used, min(c.lease_expires_at) AS ends_at
    FROM queen.limit_slots x
    JOIN queen.partition_consumers c ON c.partition_id = x.partition_id AND c.consumer_group = x.consumer_group AND c.lease_id = x.lease_id
    WHERE x.queue_id = l.queue_id AND x.scope = l.consumer_group AND c.lease_expires_at > clock_timestamp()
) s ON true
LEFT JOIN LATERAL (
    SELECT sum(queen.tokens_at(x.tokens, l.rate / l.shards, l.burst / l.shards, x.refilled_at, clock_timestamp())) AS tokens
    FROM queen.limit_tokens x WHERE x.queue_id = l.queue_id AND x.scope = l.consumer_group
) t ON true
WHERE l.queue_id = $1 AND l.consumer_group IN ('', $2)
UNION ALL
SELECT nullif(l.consumer_group, ''), n.name, k.key, l.key_leases, cardinality(a.partitions), a.ends_at, l.key_rate, t.tokens,
       CASE WHEN t.tokens < 1 THEN clock_timestamp() + make_interval(secs => (1 - t.tokens) / l.key_rate) END
FROM queen.limits l
JOIN queen.queues q ON q.id = l.queue_id
CROSS JOIN unnest($3::text[]) AS n (name)
CROSS JOIN LATERAL (
    SELECT x.* FROM queen.limit_keys x
    WHERE x.queue_id = l.queue_id AND x.scope = l.consumer_group AND x.key = queen.fair_key(n.name, q.fair_separator)
    ORDER BY x.generation DESC LIMIT 1
) k
CROSS JOIN LATERAL queen.living_leases(k.partitions, k.groups, clock_timestamp()) a
CROSS JOIN LATERAL (SELECT queen.tokens_at(k.tokens, l.key_rate, l.key_burst, k.refilled_at, clock_timestamp()) AS tokens) t
WHERE l.queue_id = $1 AND l.consumer_group IN ('', $2)
ORDER BY 1, 2
