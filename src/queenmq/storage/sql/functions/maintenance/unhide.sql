-- The clock of the database was set back: make claimable what would be hidden until it has caught up, in one bounded step. A row without a
-- lease or a retry pause, in a queue without delay or window, is readable at once, and its ready_at only says since when. So all of those that
-- lie in the future are moved by as much as the latest of them lies there; their order stays.
-- Leases, retry pauses, delays and windows are left alone: they last longer by the step, never shorter.
-- p_upto is the latest time that the clock had shown, if that is known: nothing later is examined. Returns the rows moved; fewer than p_limit
-- means that it is done.
-- Locks: the floors of groups (queen.reset_ready_floor); rows of partition_consumers, without ever waiting.
CREATE OR REPLACE FUNCTION queen.unhide(p_upto timestamptz, p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := clock_timestamp();
    v_queue uuid := '00000000-0000-0000-0000-000000000000';
    v_group text COLLATE "C" := '';
    v_last  timestamptz;
    v_moved integer := 0;
    v_rows  integer;
BEGIN
    LOOP
        -- From group to group of the index (queue, group, ready_at).
        SELECT c.queue_id, c.consumer_group INTO v_queue, v_group FROM queen.partition_consumers c
        WHERE (c.queue_id, c.consumer_group) > (v_queue, v_group)
        ORDER BY c.queue_id, c.consumer_group LIMIT 1;
        EXIT WHEN NOT FOUND OR v_moved >= p_limit;

        CONTINUE WHEN EXISTS (
            SELECT 1 FROM queen.queues q WHERE q.id = v_queue AND q.delayed_processing_s + q.window_buffer_s > 0);
        SELECT c.ready_at INTO v_last FROM queen.partition_consumers c
        WHERE c.queue_id = v_queue AND c.consumer_group = v_group AND c.ready_at > v_now AND c.ready_at <= p_upto
        ORDER BY c.ready_at DESC LIMIT 1;
        CONTINUE WHEN NOT FOUND;

        PERFORM queen.reset_ready_floor(v_queue, v_group);
        UPDATE queen.partition_consumers c
        SET ready_at = greatest(h.ready_at - (v_last - v_now), c.retry_at)
        FROM (
            SELECT x.partition_id, x.ready_at FROM queen.partition_consumers x
            WHERE x.queue_id = v_queue AND x.consumer_group = v_group AND x.ready_at > v_now AND x.ready_at <= v_last
              AND x.lease_id IS NULL AND x.skipped IS NULL AND (x.retry_at IS NULL OR x.retry_at < x.ready_at)
            ORDER BY x.ready_at LIMIT p_limit - v_moved FOR NO KEY UPDATE SKIP LOCKED
        ) h
        WHERE c.partition_id = h.partition_id AND c.consumer_group = v_group;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        v_moved := v_moved + v_rows;
    END LOOP;
    RETURN v_moved;
END $$;
