-- Take what was added to queues without their lock into account, where nothing was pushed for long and more than p_most entries piled up.
-- Returns how many entries are gone. Locks: such queues that are free (SKIP LOCKED).
CREATE OR REPLACE FUNCTION queen.fold_size_changes(p_most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_queues uuid[];
    v_gone   bigint;
BEGIN
    v_queues := ARRAY(
        SELECT q.id FROM queen.queues q
        WHERE q.id IN (SELECT c.queue_id FROM queen.queue_size_changes c GROUP BY c.queue_id HAVING count(*) > p_most)
        ORDER BY q.id FOR NO KEY UPDATE SKIP LOCKED);
    -- The next push counts.
    DELETE FROM queen.queue_sizes WHERE queue_id = ANY (v_queues);
    DELETE FROM queen.queue_size_changes WHERE queue_id = ANY (v_queues);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END $$;
