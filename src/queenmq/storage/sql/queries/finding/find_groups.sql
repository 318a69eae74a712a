-- Groups with $1 (in lower case) in their name, each with a queue that it reads; up to $2, of queues that fit the patterns $3.
SELECT k.name, k.queue FROM (
    SELECT g.consumer_group AS name, q.name AS queue FROM queen.group_statistics g
    JOIN queen.queues q ON q.id = g.queue_id AND q.name IS NOT NULL
    UNION
    SELECT g.name, g.queue_name FROM queen.consumer_groups g
) k
WHERE strpos(lower(k.name), $1) > 0 AND ($3::text[] IS NULL OR k.queue LIKE ANY ($3))
ORDER BY strpos(lower(k.name), $1) > 1, length(k.name), k.name, k.queue LIMIT $2
