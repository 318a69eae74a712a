-- The groups of a partition ($1), how far each has come with the message at an offset ($2), and how often it has failed for them.
SELECT c.consumer_group AS name, $2 <= c.position OR c.done @> $2::bigint AS consumed,
       CASE WHEN c.lease_expires_at > clock_timestamp() AND c.lease_offsets @> $2::bigint THEN c.lease_expires_at END
           AS lease_expires_at,
       coalesce(d.retry_count, queen.failed_attempts(c, $2)) AS attempts
FROM queen.partition_consumers c
LEFT JOIN LATERAL (
    SELECT d.retry_count FROM queen.dead_letter_queue d
    WHERE d.partition_id = $1 AND d.transaction_id = $4 AND d."offset" = $2 AND d.consumer_group = c.consumer_group LIMIT 1
) d ON true
WHERE c.partition_id = $1 ORDER BY c.consumer_group LIMIT $3
