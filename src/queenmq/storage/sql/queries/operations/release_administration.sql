-- What this worker had claimed and does not run any more ($2 are the claims that it does run) waits again, with all that is done.
UPDATE queen.operation_queue
SET status = 'pending', claim = NULL, attempts = greatest(attempts - 1, 0)
WHERE kind <> 'push' AND status = 'processing' AND worker = $1 AND claim <> ALL ($2::uuid[])
RETURNING id
