-- Who has popped from a queue ($1, its id) since $3 seconds, for a group ($2) or any, who was seen last first, up to $4; with the leases of each.
-- A consumer has a tag of its own at each server, so it may have several rows: they are shown as one.
WITH shown AS (
    SELECT k.consumer_group, k.name, k.host, k.process, k.subject, (array_agg(k.address ORDER BY k.seen_at DESC))[1] AS address,
           min(k.since) AS since, max(k.seen_at) AS seen_at, array_agg(k.tag) AS tags, row_number() OVER (ORDER BY max(k.seen_at) DESC) AS place
    FROM queen.consumers k
    WHERE k.queue_id = $1 AND ($2::text IS NULL OR k.consumer_group = $2) AND k.seen_at > now() - make_interval(secs => $3)
    GROUP BY k.consumer_group, k.name, k.host, k.process, k.subject,
             CASE WHEN coalesce(k.name, k.host, k.process) IS NULL THEN k.address END
    ORDER BY place LIMIT $4
), held AS (
    SELECT c.consumer_group, queen.consumer_of(c.lease_id) AS tag, c.lease_id, p.name AS partition
    FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
    WHERE c.queue_id = $1 AND ($2 IS NULL OR c.consumer_group = $2) AND c.lease_id IS NOT NULL AND c.lease_expires_at > now()
    LIMIT 10000
)
SELECT s.consumer_group, s.name, s.host, s.process, s.address, s.subject, s.since, s.seen_at, coalesce(l.leases, 0) AS leases, l.oldest,
       coalesce(l.partitions, '{}') AS partitions
FROM shown s
LEFT JOIN (
    SELECT t.place, count(*) AS leases, min(queen.leased_since(h.lease_id)) AS oldest,
           (array_agg(h.partition ORDER BY h.lease_id))[1:10] AS partitions
    FROM (SELECT x.place, x.consumer_group, unnest(x.tags) AS tag FROM shown x) t
    JOIN held h ON h.consumer_group = t.consumer_group AND h.tag = t.tag
    GROUP BY t.place
) l ON l.place = s.place
ORDER BY s.consumer_group, s.seen_at DESC
