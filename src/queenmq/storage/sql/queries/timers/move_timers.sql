-- To their next moment, in the transaction that has pushed them.
UPDATE queen.timers t
SET deliver_at = n.deliver_at, next_attempt_at = n.deliver_at, message_id = n.message_id, transaction_id = n.transaction_id,
    attempts = 0, error = NULL
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::uuid[], $5::text[]) AS n (queue_name, key, deliver_at, message_id, transaction_id)
WHERE t.queue_name = n.queue_name AND t.key = n.key
