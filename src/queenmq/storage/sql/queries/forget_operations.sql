-- Finished operations go after their time: completed and cancelled ones after $1 seconds, failed ones after $2.
WITH old AS (
    SELECT id FROM queen.operation_queue
    WHERE status IN ('completed', 'failed', 'cancelled')
      AND finished_at < clock_timestamp() - make_interval(secs => least($1::integer, $2::integer))
      AND (status <> 'failed' OR finished_at < clock_timestamp() - make_interval(secs => $2::integer))
    ORDER BY finished_at LIMIT $3
    FOR UPDATE SKIP LOCKED
)
DELETE FROM queen.operation_queue WHERE id IN (SELECT id FROM old) RETURNING id
