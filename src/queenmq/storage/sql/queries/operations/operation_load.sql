-- What waits in the operation queue, and how many operations were finished in the last ten seconds.
SELECT (SELECT count(*) FROM queen.operation_queue WHERE status IN ('pending', 'processing')) AS depth,
       (SELECT count(*) FROM queen.operation_queue
        WHERE status IN ('completed', 'failed', 'cancelled')
          AND finished_at > clock_timestamp() - interval '10 seconds') AS finished
