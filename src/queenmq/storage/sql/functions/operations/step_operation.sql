-- Do one step of a claimed operation and record it, in one transaction: after a crash the next worker goes on behind it.
-- No row if the claim is not the live one any more: the operation was cancelled, or another worker has it.
-- A step renews the claim, and what failed before it is forgiven.
-- Locks: the operation, then as queen.take_step.
CREATE OR REPLACE FUNCTION queen.step_operation(p_id uuid, p_claim uuid, p_limit integer)
RETURNS TABLE (kind text, queue_name text, done bigint, total bigint, finished boolean,
               retained_in text, retained bigint, dropped_queues text[], dropped_partitions text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_operation queen.operation_queue;
    v_step      record;
BEGIN
    SELECT * INTO v_operation FROM queen.operation_queue o
    WHERE o.id = p_id AND o.claim = p_claim AND o.status = 'processing' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_step := queen.take_step(v_operation.kind, v_operation.queue_id, v_operation.parameters, v_operation.cursor,
                              v_operation.created_at, p_limit);
    RETURN QUERY
    UPDATE queen.operation_queue o
    SET cursor = v_step.cursor, done = o.done + v_step.done, claimed_at = clock_timestamp(), attempts = 1, error = NULL,
        faults = 0, next_attempt_at = NULL,
        total = CASE WHEN v_step.finished THEN o.done + v_step.done ELSE greatest(o.total, o.done + v_step.done) END,
        status = CASE WHEN v_step.finished THEN 'completed' ELSE o.status END,
        claim = CASE WHEN v_step.finished THEN NULL ELSE o.claim END,
        finished_at = CASE WHEN v_step.finished THEN clock_timestamp() END
    WHERE o.id = p_id
    RETURNING o.kind, o.queue_name, o.done, o.total, v_step.finished,
              v_step.retained_in, v_step.retained, v_step.dropped_queues, v_step.dropped_partitions;
END $$;
