-- The queues of which some pages are to be measured now: those of $1 (by name) and those not measured for $2 seconds, the longest first; but
-- none that was measured less than $3 times what it cost ago, so that large queues cannot take all the time, and $4 times if it is quiet:
-- no server has done anything to it since its first page was measured, and nothing in it changes with time (leases that end, messages that become due).
SELECT q.id, q.name, b.is_busy, clock_timestamp() AS now
FROM queen.queues q
LEFT JOIN queen.queue_statistics s ON s.queue_id = q.id
CROSS JOIN LATERAL (
    SELECT q.name = ANY ($1) OR s.queue_id IS NULL OR s.leases > 0
           OR EXISTS (SELECT 1 FROM queen.group_statistics g WHERE g.queue_id = q.id AND g.unread > g.lag)
           OR EXISTS (
               SELECT 1 FROM queen.activity a
               WHERE a.queue_name = q.name AND a.bucket >= date_trunc('minute', coalesce(s.since, s.reckoned_at))
                 AND a.push_messages + a.pop_messages + a.ack_requests + a.ack_success + a.ack_failed + a.dead_lettered
                     + a.transactions + a.retained + a.evicted > 0) AS is_busy
) b
WHERE q.name IS NOT NULL AND (s.queue_id IS NULL
   OR ((q.name = ANY ($1) OR s.reckoned_at < clock_timestamp() - make_interval(secs => $2))
       AND s.reckoned_at < clock_timestamp() - make_interval(secs => $3 * s.cost_ms / 1000)
       AND (s.reckoned_at < clock_timestamp() - make_interval(secs => $4 * s.cost_ms / 1000) OR b.is_busy)))
ORDER BY s.reckoned_at NULLS FIRST
