-- Replace the encrypted payloads of timers ($1: queues, $2: keys, $3: when they were made) by $4, which decrypt to the same. Those that
-- were scheduled anew meanwhile have another payload and stay.
-- Locks: these timers.
UPDATE queen.timers t SET payload = n.payload
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::bytea[]) AS n (queue_name, key, created_at, payload)
WHERE t.queue_name = n.queue_name AND t.key = n.key AND t.created_at = n.created_at AND t.is_encrypted
RETURNING 1 AS replaced
