-- Lock single timers that were found due before, unless they were changed meanwhile. Waits for a server that is at it (due_timers).
SELECT queue_name, key, message_id FROM queen.timers
WHERE (SELECT pg_advisory_xact_lock(hashtextextended('queen.timers', 0)) IS NOT NULL)
  AND (queue_name, key, message_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[]))
ORDER BY queue_name, key FOR UPDATE SKIP LOCKED
