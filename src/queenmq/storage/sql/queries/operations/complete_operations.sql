-- In the transaction that did the work, under the lock of queen.hold_operations.
UPDATE queen.operation_queue o
SET status = 'completed', result = t.result::jsonb, finished_at = clock_timestamp(), claim = NULL, next_attempt_at = NULL, error = NULL,
    message_ids = NULL, transaction_ids = NULL, trace_ids = NULL, payloads = NULL, encrypted = NULL, producers = NULL, headers = NULL
FROM unnest($1::uuid[], $2::text[]) AS t (id, result)
WHERE o.id = t.id
