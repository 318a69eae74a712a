-- Up to which offset a lake has the partitions of a queue, by partition number. Each position is looked up by its key: without statistics of a queue
-- or lake that is new, a join would compare every partition with every position.
SELECT p.number, a.position
FROM queen.partitions p
CROSS JOIN LATERAL (
    SELECT o.position FROM queen.archive_positions o WHERE o.lake = $1::text AND o.partition_id = p.id LIMIT 1
) a
WHERE p.queue_id = $2::uuid
