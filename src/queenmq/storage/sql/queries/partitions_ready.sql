-- Which of these partitions are worth a look by a group: there is something to claim, or the group does not know the partition yet.
SELECT t.name
FROM queen.queues q
CROSS JOIN unnest($3::text[]) AS t (name)
-- LIMIT keeps the planner at one probe a partition, whatever it believes about the tables.
CROSS JOIN LATERAL (
    SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.name LIMIT 1
) p
LEFT JOIN LATERAL (
    SELECT c.partition_id AS known, c.ready_at FROM queen.partition_consumers c
    WHERE c.partition_id = p.id AND c.consumer_group = $2 LIMIT 1
) c ON true
WHERE q.name = $1 AND (c.known IS NULL OR c.ready_at <= clock_timestamp())
