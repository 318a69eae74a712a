-- One bounded step of a run of retention: queue after queue that asks for it (queen.retain), then idle empty partitions
-- (queen.drop_idle_partitions). p_parameters has `limit` (messages or partitions of a step) and `idleDays`.
-- Returns how many partitions were seen, and of this step the queue of which messages were deleted, how many, and the partitions
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
    v_deleted bigint := coalesce((p_cursor ->> 'deleted')::bigint, 0);
    v_dropped bigint := coalesce((p_cursor ->> 'dropped')::bigint, 0);
BEGIN
    done := 0;
    finished := false;
    cursor := coalesce(p_cursor, '{}') - 'deleted' - 'dropped';
    -- Queues of which nothing is to be deleted do not make a step each.
    LOOP
        SELECT q.id, q.name INTO v_queue FROM queen.queues q
        WHERE (q.ttl_s > 0 OR (q.retention_enabled AND (q.retention_s > 0 OR q.completed_retention_s > 0))) AND q.name IS NOT NULL
          AND q.id >= coalesce((cursor ->> 'queue')::uuid, '00000000-0000-0000-0000-000000000000')
          AND (NOT cursor ? 'queue' OR q.id > (cursor ->> 'queue')::uuid OR NOT (cursor ->> 'finished')::boolean)
        ORDER BY q.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_step := queen.retain(v_queue.id, CASE WHEN v_queue.id = (cursor ->> 'queue')::uuid THEN cursor -> 'at' END, v_limit);
        cursor := jsonb_build_object('queue', v_queue.id, 'at', v_step.cursor, 'finished', v_step.finished);
        done := done + v_step.seen;
        IF v_step.deleted > 0 OR done >= v_limit OR NOT v_step.finished THEN
            retained_in := v_queue.name;
            retained := v_step.deleted;
            v_deleted := v_deleted + v_step.deleted;
            EXIT;
        END IF;
    END LOOP;
    IF v_queue.id IS NULL THEN
        SELECT array_agg(d.queue_name), array_agg(d.partition_name) INTO dropped_queues, dropped_partitions
        FROM queen.drop_idle_partitions(v_before, v_limit) d;
        finished := coalesce(cardinality(dropped_queues), 0) < v_limit;
        v_dropped := v_dropped + coalesce(cardinality(dropped_queues), 0);
    END IF;
    cursor := cursor || jsonb_build_object('deleted', v_deleted, 'dropped', v_dropped);
END $$;
