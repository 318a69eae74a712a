SELECT queue_name, key, partition_name, deliver_at, message_id, transaction_id, is_encrypted, schedule, time_zone, attempts, error,
       created_at, NULL::bytea AS payload, headers
FROM queen.timers WHERE queue_name = $1 AND key > $2 ORDER BY key LIMIT $3
