-- Let a group get only the newest message of each partition of a queue, or (p_enabled false) all of them. What was passed over stays so.
-- Returns false if there is no such queue. When this is committed, later pops follow it. Locks: the row of the queue.
CREATE OR REPLACE FUNCTION queen.set_conflation(p_queue text, p_group text, p_enabled boolean, p_by text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
BEGIN
    SELECT * INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_enabled THEN
        INSERT INTO queen.conflating_groups (queue_id, consumer_group, set_by) VALUES (v_queue.id, p_group, p_by) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM queen.conflating_groups g WHERE g.queue_id = v_queue.id AND g.consumer_group = p_group;
    END IF;
    UPDATE queen.queues q SET has_conflation = s.some
    FROM (SELECT EXISTS (SELECT 1 FROM queen.conflating_groups g WHERE g.queue_id = v_queue.id) AS some) s
    WHERE q.id = v_queue.id AND q.has_conflation <> s.some;
    RETURN true;
END $$;
