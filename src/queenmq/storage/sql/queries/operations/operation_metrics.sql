-- The operation queue for metrics: by state what is not completed, how many of those that wait are tried again after a failure, and the
-- age of the oldest that waits or runs.
SELECT open.pending, open.processing, open.blocked, open.retrying, open.oldest_s,
       (SELECT count(*) FROM queen.operation_queue WHERE status = 'failed') AS failed
FROM (
    SELECT count(*) FILTER (WHERE status = 'pending' AND next_attempt_at IS DISTINCT FROM 'infinity') AS pending,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           count(*) FILTER (WHERE status = 'pending' AND next_attempt_at = 'infinity') AS blocked,
           count(*) FILTER (WHERE next_attempt_at < 'infinity') AS retrying,
           extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest_s
    FROM queen.operation_queue WHERE status IN ('pending', 'processing')
) open
