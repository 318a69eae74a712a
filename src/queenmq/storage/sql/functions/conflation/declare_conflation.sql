-- A consumer asks that its group gets only the newest message of each partition: a group that has not begun to read the queue will, and one that
-- has keeps what it has, as does a queue with 10,000 groups that conflate. Returns whether the group conflates; null if there is no such queue yet.
-- Locks: the queue's row FOR UPDATE if the group is new, so that nobody subscribes it meanwhile.
CREATE OR REPLACE FUNCTION queen.declare_conflation(p_queue text, p_group text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
BEGIN
    SELECT * INTO v_queue FROM queen.queues q WHERE q.name = p_queue;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF NOT queen.is_reading(v_queue, p_group) AND NOT queen.conflates(v_queue.id, p_group) THEN
        PERFORM 1 FROM queen.queues q WHERE q.id = v_queue.id AND q.name = p_queue FOR UPDATE;
        IF FOUND AND NOT queen.is_reading(v_queue, p_group)
           AND (SELECT count(*) FROM (SELECT 1 FROM queen.conflating_groups c WHERE c.queue_id = v_queue.id LIMIT 10000) t) < 10000 THEN
            INSERT INTO queen.conflating_groups (queue_id, consumer_group) VALUES (v_queue.id, p_group) ON CONFLICT DO NOTHING;
            UPDATE queen.queues q SET has_conflation = true WHERE q.id = v_queue.id AND NOT q.has_conflation;
        END IF;
    END IF;
    RETURN queen.conflates(v_queue.id, p_group);
END $$;
