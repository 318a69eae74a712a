-- A run of an operation failed. It is tried again after a pause that grows from 0.1 to 30 s, for as long as it takes, and what comes after
-- it in its partition (or queue, if it is administration) waits. Only if p_certain, that is if its content or what it asks for is the
-- cause, the tries are counted, and with the last one of max_attempts it has failed for good: administration is `failed`. A push
-- blocks its partition until it is retried or cancelled; or, if the queue wants that (setAsideFailedPushes), it is `failed` and
-- the others go on.
-- Returns what has become of it (pending, blocked or failed), and how often it was tried. No row if the claim is not the live one any more.
-- Locks: the operation.
CREATE OR REPLACE FUNCTION queen.fail_operation(p_id uuid, p_claim uuid, p_error text, p_certain boolean)
RETURNS TABLE (became text, attempts integer) LANGUAGE sql AS $$
    UPDATE queen.operation_queue o
    SET faults = o.faults + p_certain::integer,
        status = CASE WHEN e.ended AND e.aside THEN 'failed' ELSE 'pending' END,
        finished_at = CASE WHEN e.ended AND e.aside THEN clock_timestamp() END,
        next_attempt_at = CASE WHEN NOT e.ended
                               THEN clock_timestamp() + make_interval(secs => least(30, 0.1 * 2 ^ least(o.attempts - 1, 20)))
                               WHEN NOT e.aside THEN 'infinity' END,
        error = p_error, failed_at = clock_timestamp(), claim = NULL
    FROM (
        SELECT f.id, p_certain AND f.faults + 1 >= f.max_attempts AS ended,
               f.kind <> 'push' OR coalesce(q.set_aside_failed_pushes, false) AS aside
        FROM queen.operation_queue f
        LEFT JOIN queen.partition_lookup l ON l.partition_id = f.partition_id
        LEFT JOIN queen.queues q ON q.id = l.queue_id
        WHERE f.id = p_id
    ) e
    WHERE o.id = e.id AND o.claim = p_claim AND o.status = 'processing'
    RETURNING CASE WHEN e.ended AND NOT e.aside THEN 'blocked' ELSE o.status END, o.attempts
$$;
