-- Of groups in partitions ($1 and $2 run in parallel) who holds the lease ($3, or null), and how the message at the head ($4, its offset, or
-- null) failed last, and for whom. Of the error, the first $5 characters.
SELECT t.part AS partition_id, t.grp AS consumer_group, queen.leased_since(t.lease) AS held_since, h.tag IS NOT NULL AS is_held,
       h.name AS held_name, h.host AS held_host, h.process AS held_process, h.address AS held_address, h.subject AS held_subject,
       a.ended_at, a.outcome, left(a.error, $5) AS error, queen.leased_since(a.lease_id) AS leased_at, k.tag IS NOT NULL AS known,
       k.name, k.host, k.process, k.address, k.subject
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[]) AS t (part, grp, lease, head)
CROSS JOIN LATERAL (SELECT p.queue_id FROM queen.partitions p WHERE p.id = t.part LIMIT 1) p
LEFT JOIN LATERAL (
    SELECT x.* FROM queen.consumers x
    WHERE x.queue_id = p.queue_id AND x.consumer_group = t.grp AND x.tag = queen.consumer_of(t.lease) LIMIT 1
) h ON true
LEFT JOIN LATERAL (
    SELECT x.ended_at, x.outcome, x.error, x.lease_id FROM queen.attempts x
    WHERE x.partition_id = t.part AND x."offset" = t.head AND x.consumer_group = t.grp ORDER BY x.ended_at DESC LIMIT 1
) a ON true
LEFT JOIN LATERAL (
    SELECT x.* FROM queen.consumers x
    WHERE x.queue_id = p.queue_id AND x.consumer_group = t.grp AND x.tag = queen.consumer_of(a.lease_id) LIMIT 1
) k ON true
