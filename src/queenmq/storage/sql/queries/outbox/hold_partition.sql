-- After a failed attempt: the pauses double up to a minute.
INSERT INTO queen.outbox_held AS h (queue_name, partition_name, error, next_attempt_at)
VALUES ($1, $2, $3, clock_timestamp() + interval '1 second')
ON CONFLICT (queue_name, partition_name) DO UPDATE
SET attempts = h.attempts + 1, error = excluded.error,
    next_attempt_at = clock_timestamp() + least(60, 2 ^ least(h.attempts, 10)) * interval '1 second'
