-- Lock single timers that were found due before, unless they were changed meanwhile or another server is at them.
SELECT queue_name, key, message_id FROM queen.timers
WHERE (queue_name, key, message_id) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[]))
ORDER BY queue_name, key FOR UPDATE SKIP LOCKED
