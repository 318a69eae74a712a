-- The operation queue for metrics: by state what is not completed, and the age of the oldest that waits or runs.
SELECT (SELECT count(*) FROM queen.operation_queue WHERE status IN ('pending', 'processing') AND status = 'pending') AS pending,
       (SELECT count(*) FROM queen.operation_queue WHERE status IN ('pending', 'processing') AND status = 'processing') AS processing,
       (SELECT count(*) FROM queen.operation_queue WHERE status = 'failed') AS failed,
       (SELECT extract(epoch FROM clock_timestamp() - min(created_at))::float8 FROM queen.operation_queue
        WHERE status IN ('pending', 'processing')) AS oldest_s
