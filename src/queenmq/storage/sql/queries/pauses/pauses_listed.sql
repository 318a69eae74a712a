-- The pauses of a queue ($1), or of all, the oldest first, those of breakers among them. $2: patterns of the queues, if not all may be seen.
SELECT q.name AS queue, nullif(s.consumer_group, '') AS consumer_group, nullif(s.partition_name, '') AS partition,
       s.paused_at, s.paused_by, s.reason, s.probe_at
FROM (
    SELECT p.queue_id, p.consumer_group, p.partition_name, p.paused_at, p.paused_by, p.reason, NULL::timestamptz AS probe_at FROM queen.pauses p
    UNION ALL
    SELECT b.queue_id, b.consumer_group, '', b.opened_at, 'breaker', b.reason, b.probe_at FROM queen.breakers b WHERE b.opened_at IS NOT NULL
) s
JOIN queen.queues q ON q.id = s.queue_id
WHERE q.name IS NOT NULL AND ($1::text IS NULL OR q.name = $1) AND ($2::text[] IS NULL OR q.name LIKE ANY ($2))
ORDER BY s.paused_at, q.name, s.consumer_group, s.partition_name LIMIT $3
