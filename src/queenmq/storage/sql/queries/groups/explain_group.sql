-- Whether a group ($2) has begun to read a queue ($1): it has a place in some partition, or will have one in each.
SELECT EXISTS (SELECT 1 FROM queen.consumer_groups g WHERE g.queue_name = $1 AND g.name = $2 AND g.registered) AND q.id IS NOT NULL
       OR EXISTS (SELECT 1 FROM queen.partition_consumers c WHERE c.queue_id = q.id AND c.consumer_group = $2) AS started
FROM (SELECT (SELECT q.id FROM queen.queues q WHERE q.name = $1) AS id) q
