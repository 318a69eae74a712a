-- After a failed attempt: the pauses double up to a minute. A timer that was changed meanwhile is left alone.
UPDATE queen.timers t
SET attempts = t.attempts + 1, error = $4,
    next_attempt_at = clock_timestamp() + least(60, 2 ^ least(t.attempts, 10)) * interval '1 second'
WHERE (t.queue_name, t.key, t.message_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[]))
