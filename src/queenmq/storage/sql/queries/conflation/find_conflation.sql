-- Whether a group ($2) conflates in a queue ($1), since when and by whom, and how many messages it was not given because there were newer ones; no
-- row if there is no such queue.
SELECT g.queue_id IS NOT NULL AS enabled, g.set_at, g.set_by,
       (SELECT coalesce(sum(n.conflated), 0)::bigint FROM queen.filtered n WHERE n.queue_id = q.id AND n.consumer_group = $2) AS passed_over
FROM queen.queues q
LEFT JOIN queen.conflating_groups g ON g.queue_id = q.id AND g.consumer_group = $2
WHERE q.name = $1
