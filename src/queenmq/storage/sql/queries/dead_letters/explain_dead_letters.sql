-- How many dead letters a group ($2) has in a queue ($1, its id), or in one partition of it ($3).
SELECT coalesce(sum(d.letters), 0)::bigint AS letters FROM queen.dead_letter_counts d
WHERE d.queue_id = $1 AND d.consumer_group = $2 AND ($3::uuid IS NULL OR d.partition_id = $3)
