-- The groups of a partition ($1), how far each has come with the message at an offset ($2), whose transaction id is $4, and how often it has
-- failed for them. A group that went back and reads a dead letter again has not finished it.
SELECT c.consumer_group AS name, x.consumed,
       CASE WHEN x.leased THEN 'processing' WHEN NOT x.consumed THEN 'pending' WHEN d.attempts IS NULL THEN 'completed' ELSE 'dead_letter' END
           AS status,
       CASE WHEN x.leased THEN c.lease_expires_at END AS lease_expires_at,
       greatest(d.attempts, queen.failed_attempts(c, $2)) AS attempts
FROM queen.partition_consumers c
CROSS JOIN LATERAL (
    SELECT $2 <= c.position OR c.done @> $2::bigint AS consumed,
           coalesce(c.lease_expires_at > clock_timestamp() AND c.lease_offsets @> $2::bigint, false) AS leased
) x
LEFT JOIN LATERAL (
    SELECT coalesce(d.attempts, d.retry_count) AS attempts FROM queen.dead_letter_queue d
    WHERE d.partition_id = $1 AND d.transaction_id = $4 AND d."offset" = $2 AND d.consumer_group = c.consumer_group LIMIT 1
) d ON true
WHERE c.partition_id = $1 ORDER BY c.consumer_group LIMIT $3
