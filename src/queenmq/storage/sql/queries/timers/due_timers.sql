-- Lock the timers that are due, the oldest first: at most $1 of them, with at most $2 bytes of payload, or one that is larger.
-- None while another server is at it, so that timers of one partition are pushed in their order; none of the partitions $3 (queues), $4
-- (names). The walk over the index begins at the floor (queen.timer_floors), before which there is none; one in the future is not used, because
-- the clock was set back.
SELECT * FROM (
    SELECT t.*, sum(octet_length(t.payload)) OVER (ORDER BY t.next_attempt_at, t.queue_name, t.key) - octet_length(t.payload) AS bytes_before
    FROM (
        SELECT queue_name, key, partition_name, deliver_at, next_attempt_at, message_id, transaction_id, trace_id, producer_sub,
               is_encrypted, schedule, time_zone, payload, headers, clock_timestamp() AS now
        FROM queen.timers
        WHERE next_attempt_at <= now()
          AND next_attempt_at >= coalesce(
              (SELECT CASE WHEN f.floor <= clock_timestamp() THEN f.floor END FROM queen.timer_floors f ORDER BY f.id DESC LIMIT 1), '-infinity')
          AND (queue_name, partition_name) NOT IN (SELECT * FROM unnest($3::text[], $4::text[]))
          AND (SELECT pg_try_advisory_xact_lock(hashtextextended('queen.timers', 0)))
        ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ) t
) d
WHERE d.bytes_before <= $2
ORDER BY d.next_attempt_at, d.queue_name, d.key
