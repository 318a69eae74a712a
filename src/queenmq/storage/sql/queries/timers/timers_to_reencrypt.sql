-- Up to $4 timers after key $2 of queue $1 whose payloads are encrypted and do not begin with $3: other keys, or bound to no timer.
SELECT t.queue_name, t.key, t.partition_name, t.created_at, t.payload FROM queen.timers t
WHERE (t.queue_name, t.key) > ($1::text COLLATE "C", $2::text COLLATE "C") AND t.is_encrypted
  AND substring(t.payload FROM 1 FOR octet_length($3::bytea)) <> $3::bytea
ORDER BY t.queue_name, t.key LIMIT $4
