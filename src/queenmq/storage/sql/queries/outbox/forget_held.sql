-- One that still has messages is tried every minute at least.
DELETE FROM queen.outbox_held WHERE next_attempt_at < clock_timestamp() - interval '10 minutes'
