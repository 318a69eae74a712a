-- Where a group ($2) stands in a queue ($1, its id): in one partition ($3, its id), or in those $4 first that may be claimed next, those
-- with nothing unread last. Reads one message for each, the next that it would get.
SELECT p.id AS partition_id, p.name AS partition, l.first_offset, l.last_offset, l.last_message_at, c.position, c.ready_at, c.lease_id,
       c.lease_expires_at, queen.measure(c.lease_offsets) AS leased, c.lease_expires_at > clock_timestamp() AS is_leased,
       c.attempts, c.retry_at, c.last_consumed_at, now.unread, o.transaction_id, o.created_at
FROM (
    (SELECT c.* FROM queen.partition_consumers c WHERE c.partition_id = $3 AND c.consumer_group = $2)
    UNION ALL
    (SELECT c.* FROM queen.partition_consumers c
     WHERE $3::uuid IS NULL AND c.queue_id = $1 AND c.consumer_group = $2 ORDER BY c.ready_at LIMIT $4)
) c
CROSS JOIN LATERAL (SELECT p.* FROM queen.partitions p WHERE p.id = c.partition_id LIMIT 1) p
CROSS JOIN LATERAL (SELECT l.* FROM queen.partition_lookup l WHERE l.partition_id = c.partition_id LIMIT 1) l
CROSS JOIN LATERAL (
    SELECT greatest(0, l.last_offset - greatest(l.first_offset - 1, c.position) - queen.measure(c.done)) AS unread
) now
LEFT JOIN LATERAL (
    SELECT m.transaction_id, m.created_at FROM queen.messages m
    WHERE m.partition_id = c.partition_id AND m."offset" > c.position AND NOT c.done @> m."offset"
    ORDER BY m."offset" LIMIT 1
) o ON true
