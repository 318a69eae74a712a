-- A page of the partitions of a queue ($1, its id) by name, with their heads and figures as they are now: all of them, those with $2 in
-- the name, or the one that is called $3; or those with the ids $6. A search walks the names of the queue in an index; nothing else is read beyond the page.
WITH page AS MATERIALIZED (
    (SELECT p.name FROM queen.partitions p
     WHERE p.queue_id = $1 AND $2::text IS NULL AND $3::text IS NULL AND $6::uuid[] IS NULL ORDER BY p.name LIMIT $4 OFFSET $5)
    UNION ALL
    (SELECT p.name FROM queen.partitions p
     WHERE p.queue_id = $1 AND $2 IS NOT NULL AND $3 IS NULL AND strpos(lower(p.name), (SELECT lower($2))) > 0
     ORDER BY p.name LIMIT $4 OFFSET $5)
    UNION ALL
    (SELECT p.name FROM queen.partitions p WHERE p.queue_id = $1 AND p.name = $3 LIMIT $4 OFFSET $5)
    UNION ALL
    (SELECT p.name FROM unnest($6) AS t (id)
     CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = t.id LIMIT 1) p)
), found AS MATERIALIZED (
    SELECT p.id, p.name, p.created_at FROM page
    CROSS JOIN LATERAL (SELECT p.* FROM queen.partitions p WHERE p.queue_id = $1 AND p.name = page.name LIMIT 1) p
)
SELECT found.name, found.created_at, l.first_offset, l.last_offset, l.last_message_at, f.*
FROM queen.partition_figures((SELECT array_agg(id) FROM found)) f
JOIN found ON found.id = f.partition_id
CROSS JOIN LATERAL (SELECT l.* FROM queen.partition_lookup l WHERE l.partition_id = f.partition_id LIMIT 1) l
ORDER BY found.name
