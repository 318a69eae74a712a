-- Administration that failed or was cancelled goes on where it was, as the newest of its queue. What waits after a failed step is tried at once.
WITH alone AS MATERIALIZED (
    SELECT o.id, queen.administer(o.queue_id) FROM queen.operation_queue o WHERE o.id = $1 AND o.kind <> 'push'
), at_once AS (
    UPDATE queen.operation_queue o SET attempts = 0, faults = 0, next_attempt_at = NULL
    FROM alone
    WHERE o.id = alone.id AND o.status = 'pending' AND o.next_attempt_at IS NOT NULL
    RETURNING o.id
), again AS (
    UPDATE queen.operation_queue o
    SET number = DEFAULT, status = 'pending', attempts = 0, faults = 0, next_attempt_at = NULL, finished_at = NULL
    FROM alone
    WHERE o.id = alone.id AND o.status IN ('failed', 'cancelled')
      AND (o.kind <> 'retention' OR NOT EXISTS (
          SELECT 1 FROM queen.operation_queue r WHERE r.kind = 'retention' AND r.status IN ('pending', 'processing')))
    RETURNING o.id
)
SELECT true AS in_place FROM at_once UNION ALL SELECT true FROM again
