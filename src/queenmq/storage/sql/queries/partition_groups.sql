-- Where groups stand in these partitions ($1): of each up to $2, the one that is furthest behind first, and how many there are.
SELECT t.id AS partition_id, g.*
FROM unnest($1::uuid[]) AS t (id)
CROSS JOIN LATERAL (SELECT l.* FROM queen.partition_lookup l WHERE l.partition_id = t.id LIMIT 1) l
CROSS JOIN LATERAL (
    SELECT c.consumer_group AS name, c.position, c.attempts, c.retry_at, c.last_consumed_at,
           c.lease_id, c.lease_expires_at, queen.measure(c.lease_offsets) AS leased,
           c.lease_expires_at > clock_timestamp() AS is_leased, c.retry_at > clock_timestamp() AS is_paused,
           greatest(0, l.last_offset - greatest(l.first_offset - 1, c.position) - queen.measure(c.done)) AS unread,
           count(*) OVER () AS groups
    FROM queen.partition_consumers c WHERE c.partition_id = t.id
    ORDER BY unread DESC, c.consumer_group LIMIT $2
) g
