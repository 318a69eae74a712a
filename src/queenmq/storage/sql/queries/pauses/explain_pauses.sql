-- What of a queue ($1, its id) is paused for a group ($2), the widest first; last what its own breaker has paused.
SELECT nullif(s.consumer_group, '') AS consumer_group, nullif(s.partition_name, '') AS partition, s.paused_at, s.paused_by, s.reason,
       NULL::timestamptz AS probe_at
FROM queen.pauses s WHERE s.queue_id = $1 AND s.consumer_group IN ('', $2)
UNION ALL
SELECT b.consumer_group, NULL, b.opened_at, 'breaker', b.reason, b.probe_at
FROM queen.breakers b WHERE b.queue_id = $1 AND b.consumer_group = $2 AND b.opened_at IS NOT NULL AND b.probe_at > clock_timestamp()
ORDER BY partition NULLS FIRST, consumer_group NULLS FIRST
