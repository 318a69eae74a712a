-- A run failed: it is tried again until its attempts are used up. The last error is kept.
UPDATE queen.operation_queue
SET status = CASE WHEN attempts >= max_attempts THEN 'failed' ELSE 'pending' END,
    finished_at = CASE WHEN attempts >= max_attempts THEN clock_timestamp() END,
    error = $3, failed_at = clock_timestamp(), claim = NULL
WHERE id = $1 AND claim = $2 AND status = 'processing'
RETURNING status
