-- The queues of a namespace and/or task in the order in which a pop tries them: the higher priority first, then
-- the one whose oldest claimable partition has waited longest. A queue that the group does not know yet counts. $4: patterns of the
-- names, if not every queue may be read. Floors (see queen.move_ready_floor) are only read: many queues may match.
SELECT q.name, g.name IS NOT NULL AS subscribed
FROM queen.queues q
LEFT JOIN queen.consumer_groups g ON g.queue_name = q.name AND g.name = $3 AND (g.registered OR g.placed_upto IS NOT NULL)
LEFT JOIN LATERAL (
    SELECT c.ready_at FROM queen.partition_consumers c
    WHERE c.queue_id = q.id AND c.consumer_group = $3 AND c.ready_at >= coalesce((
        SELECT CASE WHEN f.floor <= clock_timestamp()
                     AND f.moved_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()
                    THEN f.floor END
        FROM (
            SELECT x.floor, x.moved_at FROM queen.ready_floors x
            WHERE x.queue_id = q.id AND x.consumer_group = $3 ORDER BY x.generation DESC LIMIT 1
        ) f), '-infinity')
    ORDER BY c.ready_at LIMIT 1
) oldest ON true
WHERE ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.task = $2)
  AND ($4::text[] IS NULL OR q.name LIKE ANY ($4))
  AND (g.name IS NULL OR oldest.ready_at <= clock_timestamp())
  AND NOT ((q.has_pauses OR q.has_policies) AND (queen.paused_for(q.id, $3)).everything)
ORDER BY q.priority DESC, coalesce(oldest.ready_at, q.created_at), q.name
