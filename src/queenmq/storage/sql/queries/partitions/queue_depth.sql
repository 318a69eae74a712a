-- How many messages of a queue ($1, its id) a group ($2) has not finished; without a group, the one that is furthest behind in each partition. The
-- partitions with the most of them ($3 at most), and with each row the totals of all. Reads a row for each partition of the queue.
SELECT p.name, d.pending, (sum(d.pending) OVER ())::bigint AS total, (count(*) OVER ())::bigint AS partitions
FROM (
    SELECT l.partition_id,
           l.last_offset - greatest(coalesce(c.position, 0), l.first_offset - 1) - coalesce(queen.count_offsets(c.done), 0) AS pending
    FROM queen.partition_lookup l
    LEFT JOIN LATERAL (
        SELECT x.position, x.done FROM queen.partition_consumers x
        WHERE x.partition_id = l.partition_id AND ($2::text IS NULL OR x.consumer_group = $2) ORDER BY x.position LIMIT 1
    ) c ON true
    WHERE l.queue_id = $1
) d
JOIN queen.partitions p ON p.id = d.partition_id
WHERE d.pending > 0
ORDER BY d.pending DESC, p.name LIMIT $3
