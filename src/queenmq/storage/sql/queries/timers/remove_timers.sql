-- In the transaction that has pushed them.
DELETE FROM queen.timers WHERE (queue_name, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
