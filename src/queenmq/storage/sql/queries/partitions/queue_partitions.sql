-- A page of the partitions of a queue ($1), by name, with their figures as they are now.
WITH page AS MATERIALIZED (
    SELECT p.id, p.name, p.created_at FROM queen.partitions p
    WHERE p.queue_id = $1 ORDER BY p.name LIMIT $2 OFFSET $3
)
SELECT page.name, page.created_at, f.*
FROM queen.partition_figures((SELECT array_agg(id ORDER BY name) FROM page)) f
JOIN page ON page.id = f.partition_id
ORDER BY page.name
