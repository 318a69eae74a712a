-- The partitions of a queue ($1, its id) in a state ($2), of any group or of the group $5, the worst first; up to $3, after $4:
--   failing       the message at the head of a group has failed, the most attempts first
--   leased        a group holds a lease, the oldest first
--   waiting       the statistics know it as one of the hundred of a group that have waited longest
--   dead_letters  some of its messages are dead letters, the most first
--   unread        a group that is awake has not finished something, the most first
SELECT x.partition_id FROM (
    (SELECT c.partition_id, max(c.attempts)::double precision AS weight FROM queen.partition_consumers c
     WHERE $2 = 'failing' AND c.queue_id = $1 AND ($5::text IS NULL OR c.consumer_group = $5) AND c.attempts > 0 GROUP BY 1)
    UNION ALL
    (SELECT c.partition_id, max(extract(epoch FROM now() - queen.leased_since(c.lease_id)))::double precision FROM queen.partition_consumers c
     WHERE $2 = 'leased' AND c.queue_id = $1 AND ($5 IS NULL OR c.consumer_group = $5) AND c.lease_id IS NOT NULL AND c.lease_expires_at > now() GROUP BY 1)
    UNION ALL
    (SELECT k.partition_id, max(extract(epoch FROM now() - k.oldest_unread_at))::double precision FROM queen.lagging_partitions k
     WHERE $2 = 'waiting' AND k.queue_id = $1 AND ($5 IS NULL OR k.consumer_group = $5) GROUP BY 1)
    UNION ALL
    (SELECT d.partition_id, sum(d.letters)::double precision FROM queen.dead_letter_counts d
     WHERE $2 = 'dead_letters' AND d.queue_id = $1 AND ($5 IS NULL OR d.consumer_group = $5) AND d.letters > 0 GROUP BY 1)
    UNION ALL
    (SELECT c.partition_id, max(l.last_offset - greatest(c.position, l.first_offset - 1))::double precision
     FROM queen.partition_consumers c JOIN queen.partition_lookup l ON l.partition_id = c.partition_id
     WHERE $2 = 'unread' AND c.queue_id = $1 AND ($5 IS NULL OR c.consumer_group = $5) AND c.ready_at IS NOT NULL
       AND l.last_offset > greatest(c.position, l.first_offset - 1) GROUP BY 1)
) x
JOIN queen.partitions p ON p.id = x.partition_id
ORDER BY x.weight DESC NULLS LAST, p.name LIMIT $3 OFFSET $4
