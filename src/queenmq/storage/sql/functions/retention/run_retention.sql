-- One bounded step of a run of retention: queue after queue that asks for it (queen.retain), then idle empty partitions
-- (queen.drop_idle_partitions). p_parameters has `limit` (messages or partitions of a step) and `idleDays`.
-- Returns how many partitions were finished, and of this step the queue of which messages were deleted, how many, and the partitions
-- that were dropped. The cursor has the totals of the run: `deleted` messages and `dropped` partitions.
-- Locks: as those two.
CREATE OR REPLACE FUNCTION queen.run_retention(
    p_parameters jsonb, p_cursor jsonb, OUT cursor jsonb, OUT done bigint, OUT finished boolean,
    OUT retained_in text, OUT retained bigint, OUT dropped_queues text[], OUT dropped_partitions text[])
LANGUAGE plpgsql AS $$
DECLARE
    v_limit   integer := (p_parameters ->> 'limit')::integer;
    v_before  timestamptz := clock_timestamp() - make_interval(days => (p_parameters ->> 'idleDays')::integer);
    v_queue   record;
    v_step    record;
    v_after   uuid := (p_cursor ->> 'after')::uuid;
    v_deleted bigint := coalesce((p_cursor ->> 'deleted')::bigint, 0);
    v_dropped bigint := coalesce((p_cursor ->> 'dropped')::bigint, 0);
BEGIN
    done := 0;
    finished := false;
    SELECT q.id, q.name INTO v_queue FROM queen.queues q
    WHERE (q.ttl_s > 0 OR (q.retention_enabled AND (q.retention_s > 0 OR q.completed_retention_s > 0))) AND q.name IS NOT NULL
      AND q.id >= coalesce((p_cursor ->> 'queue')::uuid, '00000000-0000-0000-0000-000000000000')
      AND (q.id > (p_cursor ->> 'queue')::uuid OR p_cursor IS NULL OR NOT (p_cursor ->> 'finished')::boolean)
    ORDER BY q.id LIMIT 1;
    IF FOUND THEN
        IF v_queue.id IS DISTINCT FROM (p_cursor ->> 'queue')::uuid THEN
            v_after := NULL;
        END IF;
        v_step := queen.retain(v_queue.id, v_after, v_limit);
        done := v_step.seen;
        retained_in := v_queue.name;
        retained := v_step.deleted;
        cursor := jsonb_build_object('queue', v_queue.id, 'after', v_step.next, 'finished', v_step.finished);
        v_deleted := v_deleted + v_step.deleted;
    ELSE
        SELECT array_agg(d.queue_name), array_agg(d.partition_name) INTO dropped_queues, dropped_partitions
        FROM queen.drop_idle_partitions(v_before, v_limit) d;
        cursor := p_cursor;
        finished := coalesce(cardinality(dropped_queues), 0) < v_limit;
        v_dropped := v_dropped + coalesce(cardinality(dropped_queues), 0);
    END IF;
    cursor := coalesce(cursor, '{}') || jsonb_build_object('deleted', v_deleted, 'dropped', v_dropped);
END $$;
