-- Finished operations go after their time: completed and cancelled ones after $1 seconds, failed administration after $2.
-- A push that has failed was accepted, and its messages are nowhere else: it stays until it is retried or cancelled.
WITH old AS (
    SELECT id FROM queen.operation_queue
    WHERE status IN ('completed', 'failed', 'cancelled') AND NOT (status = 'failed' AND kind = 'push')
      AND finished_at < clock_timestamp() - make_interval(secs => least($1::integer, $2::integer))
      AND (status <> 'failed' OR finished_at < clock_timestamp() - make_interval(secs => $2::integer))
    ORDER BY finished_at LIMIT $3
    FOR UPDATE SKIP LOCKED
)
DELETE FROM queen.operation_queue WHERE id IN (SELECT id FROM old) RETURNING id
