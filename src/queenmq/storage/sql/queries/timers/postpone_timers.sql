-- After a failed attempt: the pauses double up to a minute. A timer that was changed meanwhile is left alone.
-- Locks the timers by queue and key, as everybody does who waits for them.
UPDATE queen.timers t
SET attempts = t.attempts + 1, error = $4,
    next_attempt_at = clock_timestamp() + least(60, 2 ^ least(t.attempts, 10)) * interval '1 second'
FROM (
    SELECT x.queue_name, x.key FROM queen.timers x
    WHERE (x.queue_name, x.key, x.message_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[]))
    ORDER BY x.queue_name, x.key FOR UPDATE
) d
WHERE t.queue_name = d.queue_name AND t.key = d.key
