-- From which moment on a group reads a partition in which it has no place yet, null for the first stored message: as queen.subscribe would
-- decide it for a pop that says nothing (p_new: such a pop starts with new messages).
CREATE OR REPLACE FUNCTION queen.start_of(p_queue text, p_partition text, p_group text, p_new boolean, p_now timestamptz)
RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_single timestamptz;
    v_whole  timestamptz;
BEGIN
    SELECT s.since INTO v_single FROM queen.partition_subscriptions s
    WHERE s.queue_name = p_queue AND s.partition_name = p_partition AND s.name = p_group;
    IF FOUND THEN
        RETURN v_single;
    END IF;
    SELECT g.since INTO v_whole FROM queen.consumer_groups g WHERE g.queue_name = p_queue AND g.name = p_group;
    RETURN CASE WHEN FOUND THEN v_whole WHEN p_new THEN p_now END;
END $$;
