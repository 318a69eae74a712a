-- The groups of a queue ($1) as they subscribed, or one of them ($2): some of them only to a partition.
SELECT g.name, g.mode, g.since, g.registered FROM queen.consumer_groups g
WHERE g.queue_name = $1 AND ($2::text IS NULL OR g.name = $2) ORDER BY g.name LIMIT $3
