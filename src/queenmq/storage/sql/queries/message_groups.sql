-- The groups of a partition ($1), and how far each has come with the message at an offset ($2).
SELECT c.consumer_group AS name, $2 <= c.position OR c.done @> $2::bigint AS consumed,
       CASE WHEN c.lease_expires_at > clock_timestamp() AND c.lease_offsets @> $2::bigint THEN c.lease_expires_at END
           AS lease_expires_at
FROM queen.partition_consumers c WHERE c.partition_id = $1 ORDER BY c.consumer_group LIMIT $3
