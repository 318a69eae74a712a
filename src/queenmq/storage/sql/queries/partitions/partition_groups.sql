-- Where groups stand in these partitions ($1): of each up to $2, the one that is furthest behind first, and how many there are; or the group $3.
-- With $4 those that hold a lease (`leased`), or whose head has failed (`failing`), come before the others.
SELECT t.id AS partition_id, g.name, g.groups, q.lease_time_s, queen.retry_limit_of(q, g.name) AS retry_limit, q.delayed_processing_s, q.window_buffer_s, q.ttl_s,
       clock_timestamp() AS now, s.*, s.lease_expires_at > clock_timestamp() AS is_leased, s.retry_at > clock_timestamp() AS is_paused,
       (q.has_pauses OR q.has_policies) AND queen.is_paused(q.id, t.id, g.name) AS is_stopped,
       extract(epoch FROM clock_timestamp() - s.due_since)::double precision AS time_lag_s
FROM unnest($1::uuid[]) AS t (id)
CROSS JOIN LATERAL (SELECT l.* FROM queen.partition_lookup l WHERE l.partition_id = t.id LIMIT 1) l
CROSS JOIN LATERAL (
    SELECT c.consumer_group AS name, c.position, queen.count_stored(l, c.position, l.last_offset, c.done) AS unread,
           count(*) OVER () AS groups
    FROM queen.partition_consumers c WHERE c.partition_id = t.id AND ($3::text IS NULL OR c.consumer_group = $3)
    ORDER BY CASE $4::text WHEN 'leased' THEN c.lease_id IS NOT NULL WHEN 'failing' THEN c.attempts > 0 ELSE false END DESC,
             unread DESC, c.consumer_group LIMIT $2
) g
CROSS JOIN LATERAL (SELECT q.* FROM queen.queues q WHERE q.id = l.queue_id LIMIT 1) q
CROSS JOIN LATERAL queen.describe_position(q, t.id, g.name, NULL, clock_timestamp()) s
