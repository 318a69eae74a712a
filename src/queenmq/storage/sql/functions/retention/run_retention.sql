-- One bounded step of a run of retention: queue after queue that asks for it (queen.retain), then idle empty partitions
-- (queen.drop_idle_partitions). p_parameters has `limit` (messages or partitions of a step) and `idleDays`.
-- Returns how many partitions were finished, and in `told` the messages deleted by queue and the partitions dropped.
-- Locks: as those two.
CREATE OR REPLACE FUNCTION queen.run_retention(
    p_parameters jsonb, p_cursor jsonb, OUT cursor jsonb, OUT done bigint, OUT finished boolean, OUT told jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    v_limit   integer := (p_parameters ->> 'limit')::integer;
    v_before  timestamptz := clock_timestamp() - make_interval(days => (p_parameters ->> 'idleDays')::integer);
    v_queue   record;
    v_step    record;
    v_after   uuid := (p_cursor ->> 'after')::uuid;
    v_deleted bigint := coalesce((p_cursor #>> '{result,deleted}')::bigint, 0);
    v_dropped bigint := coalesce((p_cursor #>> '{result,partitionsDropped}')::bigint, 0);
    v_names   jsonb;
BEGIN
    done := 0;
    finished := false;
    told := '{}';
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
        told := jsonb_build_object('queue', v_queue.name, 'deleted', v_step.deleted);
        cursor := jsonb_build_object('queue', v_queue.id, 'after', v_step.next, 'finished', v_step.finished);
        v_deleted := v_deleted + v_step.deleted;
    ELSE
        SELECT jsonb_agg(jsonb_build_array(d.queue_name, d.partition_name)) INTO v_names
        FROM queen.drop_idle_partitions(v_before, v_limit) d;
        told := jsonb_build_object('dropped', coalesce(v_names, '[]'));
        cursor := p_cursor;
        finished := coalesce(jsonb_array_length(v_names), 0) < v_limit;
        v_dropped := v_dropped + coalesce(jsonb_array_length(v_names), 0);
    END IF;
    cursor := coalesce(cursor, '{}') || jsonb_build_object(
        'result', jsonb_build_object('deleted', v_deleted, 'partitionsDropped', v_dropped));
END $$;
