-- What this worker had claimed when it was interrupted is not running any more.
UPDATE queen.operation_queue
SET status = 'pending', claim = NULL, attempts = greatest(attempts - 1, 0)
WHERE kind = 'push' AND status = 'processing' AND worker = $1
