-- Move the floor of a group (queen.ready_floors) as far up as is safe, and return it: up to its oldest ready row, and never beyond the fence (see
-- queen.pass_ready_fence), because rows before that may still become visible. Once a minute, or once in five if that is dear, it begins from
-- nothing: so that a row which was made ready in the past by hand, or while the clock was set back, does not stay hidden.
-- Locks: an advisory one and the floor's row, if they are free; who does not get them leaves the floor where it is.
CREATE OR REPLACE FUNCTION queen.move_ready_floor(p_queue uuid, p_group text) RETURNS timestamptz LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_floor  queen.ready_floors;
    v_now    timestamptz := clock_timestamp();
    v_fence  timestamptz;
    v_from   timestamptz;
    v_oldest timestamptz;
    v_check  boolean;
BEGIN
    -- With an older snapshot, rows that were committed meanwhile would be overlooked.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN '-infinity';
    END IF;
    -- Servers may run that make groups ready in the past and know no floors.
    IF NOT EXISTS (SELECT 1 FROM queen.ready_fences) THEN
        RETURN '-infinity';
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('queen.ready_floors ' || p_group, hashtext(p_queue::text))) THEN
        SELECT f.floor INTO v_from FROM queen.ready_floors f
        WHERE f.queue_id = p_queue AND f.consumer_group = p_group ORDER BY f.generation DESC LIMIT 1;
        RETURN CASE WHEN v_from <= v_now THEN v_from ELSE '-infinity' END;
    END IF;
    v_fence := queen.pass_ready_fence();
    SELECT * INTO v_floor FROM queen.ready_floors f
    WHERE f.queue_id = p_queue AND f.consumer_group = p_group ORDER BY f.generation DESC LIMIT 1;
    IF FOUND THEN
        PERFORM 1 FROM queen.ready_floors f
        WHERE f.queue_id = p_queue AND f.consumer_group = p_group AND f.generation = v_floor.generation
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN '-infinity';     -- the group or its queue is being deleted
        END IF;
    END IF;
    v_check := v_floor.queue_id IS NULL OR v_floor.floor > v_now OR v_floor.moved_at > v_now OR v_floor.checked_at > v_now
               OR v_floor.checked_at < v_now - least(greatest(interval '1 minute', v_floor.check_cost * 100), interval '5 minutes');
    v_from := CASE WHEN v_check THEN '-infinity' ELSE v_floor.floor END;
    -- After the fence, so that it sees everything that was committed before.
    SELECT c.ready_at INTO v_oldest FROM queen.partition_consumers c
    WHERE c.queue_id = p_queue AND c.consumer_group = p_group AND c.ready_at >= v_from
    ORDER BY c.ready_at LIMIT 1;
    IF v_fence IS NOT NULL THEN
        v_from := greatest(v_from, least(v_fence, v_oldest));
    END IF;
    IF v_floor.queue_id IS NULL THEN
        INSERT INTO queen.ready_floors (queue_id, consumer_group, floor, moved_at, checked_at, check_cost)
        VALUES (p_queue, p_group, v_from, v_now, v_now, clock_timestamp() - v_now);
    ELSE
        UPDATE queen.ready_floors f
        SET generation = f.generation + 1, floor = v_from, moved_at = v_now,
            checked_at = CASE WHEN v_check THEN v_now ELSE f.checked_at END,
            check_cost = CASE WHEN v_check THEN clock_timestamp() - v_now ELSE f.check_cost END
        WHERE f.queue_id = p_queue AND f.consumer_group = p_group AND f.generation = v_floor.generation;
    END IF;
    RETURN v_from;
END $$;
