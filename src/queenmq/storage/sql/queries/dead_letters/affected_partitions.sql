-- How many (partition, group) have dead letters, counted up to ten thousand.
SELECT count(*) AS partitions FROM (
    SELECT 1 FROM queen.dead_letter_counts d
    WHERE ($1::text IS NULL AND d.queue_id NOT IN (SELECT q.id FROM queen.queues q WHERE q.name IS NULL)) OR d.queue_id = (SELECT q.id FROM queen.queues q WHERE q.name = $1) LIMIT 10000
) x
