-- The filter of a group ($2) in a queue ($1), and how many messages it has kept from the group; no row if there is no such queue.
SELECT f.filter, f.set_at, f.set_by,
       (SELECT coalesce(sum(n.messages), 0)::bigint FROM queen.filtered n WHERE n.queue_id = q.id AND n.consumer_group = $2) AS passed_over
FROM queen.queues q
LEFT JOIN queen.group_filters f ON f.queue_id = q.id AND f.consumer_group = $2
WHERE q.name = $1
