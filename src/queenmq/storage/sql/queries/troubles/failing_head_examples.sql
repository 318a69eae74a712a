-- Of groups with failing heads ($1 the queues, $2 the groups, in parallel) the partition whose head has failed most often, and its last error.
SELECT t.queue, t.grp AS consumer_group, p.name AS partition, a.error
FROM unnest($1::text[], $2::text[]) AS t (queue, grp)
CROSS JOIN LATERAL (SELECT q.id FROM queen.queues q WHERE q.name = t.queue LIMIT 1) q
CROSS JOIN LATERAL (
    SELECT c.partition_id, c.position FROM queen.partition_consumers c
    WHERE c.queue_id = q.id AND c.consumer_group = t.grp AND c.attempts > 0 ORDER BY c.attempts DESC, c.partition_id LIMIT 1
) c
CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = c.partition_id LIMIT 1) p
LEFT JOIN LATERAL (
    SELECT x.error FROM queen.attempts x
    WHERE x.partition_id = c.partition_id AND x."offset" > c.position AND x.consumer_group = t.grp ORDER BY x.ended_at DESC LIMIT 1
) a ON true
