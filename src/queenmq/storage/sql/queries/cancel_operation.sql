-- What waits or has failed is never done. What runs just now cannot be stopped.
UPDATE queen.operation_queue
SET status = 'cancelled', finished_at = clock_timestamp(),
    message_ids = NULL, transaction_ids = NULL, trace_ids = NULL, payloads = NULL, encrypted = NULL, producers = NULL
WHERE id = $1 AND status IN ('pending', 'failed')
RETURNING id
