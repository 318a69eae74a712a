-- What a seek of a group ($2) in a queue ($1, its id), or in one partition ($3, its id), would do: to the end ($4 null), or behind $4. How many
-- partitions it moves, how many messages that the group has finished it delivers again, how many that it has not it skips; of $5
-- partitions at most, and whether there are more. Reads a few messages of each for a moment, none for the end; locks nothing.
WITH seen AS MATERIALIZED (
    (SELECT c.* FROM queen.partition_consumers c WHERE c.partition_id = $3 AND c.consumer_group = $2)
    UNION ALL
    (SELECT c.* FROM queen.partition_consumers c
     WHERE $3::uuid IS NULL AND c.queue_id = $1 AND c.consumer_group = $2 ORDER BY c.ready_at LIMIT $5 + 1)
), moved AS (
    SELECT queen.count_stored(l, t.target, l.last_offset, '{}')
           - queen.count_stored(l, greatest(t.target, c.position), l.last_offset, c.done) AS again,
           queen.count_stored(l, c.position, t.target, c.done) AS skipped
    FROM (SELECT * FROM seen LIMIT $5) c
    JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
    CROSS JOIN LATERAL (
        SELECT CASE WHEN $4::timestamptz IS NULL THEN l.last_offset ELSE queen.offset_before(c.partition_id, $4, true) END AS target
        OFFSET 0
    ) t
)
SELECT count(*) AS partitions, coalesce(sum(again), 0)::bigint AS again, coalesce(sum(skipped), 0)::bigint AS skipped,
       (SELECT count(*) FROM seen) > $5 AS more
FROM moved
