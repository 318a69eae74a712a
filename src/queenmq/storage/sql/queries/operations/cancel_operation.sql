-- What waits or has failed is never done. A push that runs just now cannot be stopped; administration stops behind its step, which is waited for.
UPDATE queen.operation_queue o
SET status = 'cancelled', finished_at = clock_timestamp(), claim = NULL,
    error = CASE WHEN o.kind = 'push' THEN o.error ELSE queen.cancellation(o) END,
    message_ids = NULL, transaction_ids = NULL, trace_ids = NULL, payloads = NULL, encrypted = NULL, producers = NULL, headers = NULL
WHERE o.id = $1 AND (o.status IN ('pending', 'failed') OR (o.kind <> 'push' AND o.status = 'processing'))
RETURNING o.kind, o.error
