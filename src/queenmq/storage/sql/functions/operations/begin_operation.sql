-- Clear, seek or redrive. What one step of about p_limit rows finishes is done at once, without an operation, unless older ones of the
-- queue are unfinished. Otherwise an operation is made, of which the first step is done, under p_claim; or one that waits for a
-- worker if p_claim is null or others come before it. Whichever it is, it is about what is there now.
-- known is false if there is no such queue; id is null if all is done. `running` is whether the operation is claimed.
-- Raises QN005 if p_most operations of the queue are unfinished.
-- Locks: queen.administer, then as queen.take_step.
CREATE OR REPLACE FUNCTION queen.begin_operation(
    p_kind text, p_queue text, p_parameters jsonb, p_worker text, p_claim uuid, p_limit integer, p_most integer,
    OUT known boolean, OUT id uuid, OUT running boolean, OUT done bigint, OUT total bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue uuid;
    v_now   timestamptz;
    v_open  integer;
    v_step  record;
BEGIN
    done := 0;
    LOOP
        SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue;
        known := v_queue IS NOT NULL;
        IF NOT known THEN
            RETURN;
        END IF;
        PERFORM queen.administer(v_queue);
        PERFORM 1 FROM queen.queues q WHERE q.id = v_queue AND q.name = p_queue;
        EXIT WHEN FOUND;
    END LOOP;

    SELECT count(*) INTO v_open FROM queen.operation_queue o
    WHERE o.queue_id = v_queue AND o.kind <> 'push' AND o.status IN ('pending', 'processing');
    IF v_open >= p_most THEN
        RAISE SQLSTATE 'QN005' USING MESSAGE = format('the queue has %s operations to be done', v_open);
    END IF;
    IF p_kind = 'seek' THEN
        -- It is about every partition: also those in which a new group has no place yet (see queen.subscribe).
        PERFORM queen.subscribe(p_queue, NULL, g.name, 'all', NULL) FROM queen.consumer_groups g
        WHERE g.queue_name = p_queue AND g.name = p_parameters ->> 'group' AND g.placed_upto IS NOT NULL;
    END IF;
    v_now := clock_timestamp();
    SELECT NULL::jsonb AS cursor, 0::bigint AS done, false AS finished INTO v_step;
    IF v_open = 0 THEN
        SELECT s.cursor, s.done, s.finished INTO v_step
        FROM queen.take_step(p_kind, v_queue, p_parameters, NULL, NULL, p_limit) s;
        done := v_step.done;
        IF v_step.finished THEN
            RETURN;
        END IF;
    END IF;
    running := v_open = 0 AND p_claim IS NOT NULL;
    total := done + queen.left_to_do(p_kind, v_queue, p_parameters, v_step.cursor);
    INSERT INTO queen.operation_queue
        (id, kind, queue_name, partition_name, queue_id, parameters, cursor, done, total, created_at, priority,
         status, worker, claim, claimed_at, attempts)
    SELECT queen.uuid7(), p_kind, p_queue, p_parameters ->> 'partition', v_queue, p_parameters, v_step.cursor,
           begin_operation.done, begin_operation.total, v_now, 10, s.status, s.worker, s.claim, s.claimed_at, s.attempts
    FROM queen.first_claim(p_worker, CASE WHEN running THEN p_claim END) s
    RETURNING operation_queue.id INTO id;
END $$;
