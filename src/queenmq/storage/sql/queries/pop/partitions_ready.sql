-- Which of these partitions are worth a pop by a group: there is something to claim, or the group does not know the partition yet.
-- Not one that is awake although everything was read, because a transaction holds its head: every pop would find nothing.
SELECT t.name
FROM queen.queues q
CROSS JOIN unnest($3::text[]) AS t (name)
-- LIMIT keeps the planner at one probe a partition, whatever it believes about the tables.
CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.name LIMIT 1
) p
LEFT JOIN LATERAL (
    SELECT c.partition_id AS known, c.ready_at, c.lease_id IS NULL AND c.position >= l.last_offset AS is_read
    FROM queen.partition_consumers c
    CROSS JOIN LATERAL (
        SELECT h.last_offset FROM queen.partition_lookup h
        WHERE h.partition_id = c.partition_id ORDER BY h.generation DESC LIMIT 1
    ) l
    WHERE c.partition_id = p.id AND c.consumer_group = $2 ORDER BY c.generation DESC LIMIT 1
) c ON true
WHERE q.name = $1 AND (c.known IS NULL OR (c.ready_at <= clock_timestamp() AND NOT c.is_read))
  AND NOT ((q.has_pauses OR q.has_policies) AND queen.is_paused(q.id, p.id, $2))
