-- What is claimed and was not run waits again: something before it in its partition has failed.
UPDATE queen.operation_queue
SET status = 'pending', claim = NULL, attempts = greatest(attempts - 1, 0)
WHERE claim = $1 AND status = 'processing'
