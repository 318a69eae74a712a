-- Who has popped from a queue ($1, its id) since $3 seconds, for a group ($2) or any, who was seen last first, up to $4; with the leases of each.
SELECT k.consumer_group, k.name, k.host, k.process, k.address, k.subject, k.since, k.seen_at, coalesce(l.leases, 0) AS leases, l.oldest,
       coalesce(l.partitions, '{}') AS partitions
FROM (
    SELECT * FROM queen.consumers k
    WHERE k.queue_id = $1 AND ($2::text IS NULL OR k.consumer_group = $2) AND k.seen_at > now() - make_interval(secs => $3)
    ORDER BY k.seen_at DESC LIMIT $4
) k
LEFT JOIN (
    SELECT x.consumer_group, x.tag, count(*) AS leases, min(queen.leased_since(x.lease_id)) AS oldest,
           (array_agg(x.partition ORDER BY x.lease_id))[1:10] AS partitions
    FROM (
        SELECT c.consumer_group, queen.consumer_of(c.lease_id) AS tag, c.lease_id, p.name AS partition
        FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
        WHERE c.queue_id = $1 AND ($2 IS NULL OR c.consumer_group = $2) AND c.lease_id IS NOT NULL AND c.lease_expires_at > now()
        LIMIT 10000
    ) x
    GROUP BY x.consumer_group, x.tag
) l ON l.consumer_group = k.consumer_group AND l.tag = k.tag
ORDER BY k.consumer_group, k.seen_at DESC
