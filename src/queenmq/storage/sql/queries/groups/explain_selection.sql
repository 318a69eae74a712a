-- Which messages a group ($2) gets of a queue ($1, its id): by its filter, and only the newest of each partition; and what it was not given for it.
SELECT f.filter, g.queue_id IS NOT NULL AS conflates, n.filtered, n.conflated
FROM (SELECT coalesce(sum(x.messages), 0)::bigint AS filtered, coalesce(sum(x.conflated), 0)::bigint AS conflated
      FROM queen.filtered x WHERE x.queue_id = $1 AND x.consumer_group = $2) n
LEFT JOIN queen.group_filters f ON f.queue_id = $1 AND f.consumer_group = $2
LEFT JOIN queen.conflating_groups g ON g.queue_id = $1 AND g.consumer_group = $2
