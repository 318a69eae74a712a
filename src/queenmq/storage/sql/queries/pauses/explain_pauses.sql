-- What of a queue ($1, its id) is paused for a group ($2), the widest first.
SELECT nullif(s.consumer_group, '') AS consumer_group, nullif(s.partition_name, '') AS partition, s.paused_at, s.paused_by, s.reason
FROM queen.pauses s WHERE s.queue_id = $1 AND s.consumer_group IN ('', $2) ORDER BY s.partition_name, s.consumer_group
