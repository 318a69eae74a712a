-- How deliveries of the message at an offset ($2) of a partition ($1) have failed, the newest first, up to $3, and who the consumers were.
SELECT a.consumer_group, a.ended_at, a.outcome, a.error, queen.leased_since(a.lease_id) AS leased_at, k.tag IS NOT NULL AS known,
       k.name, k.host, k.process, k.address, k.subject
FROM (
    SELECT x.*, (SELECT p.queue_id FROM queen.partitions p WHERE p.id = x.partition_id) AS queue_id
    FROM queen.attempts x WHERE x.partition_id = $1 AND x."offset" = $2
) a
LEFT JOIN queen.consumers k ON k.queue_id = a.queue_id AND k.consumer_group = a.consumer_group AND k.tag = queen.consumer_of(a.lease_id)
ORDER BY a.ended_at DESC LIMIT $3
