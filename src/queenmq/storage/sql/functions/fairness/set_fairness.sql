-- Share the deliveries of a queue out among keys that are made of the names of its partitions; p_given null takes that back. Returns whether that
-- changes something; null if there is no such queue. The keys are then to be written with queen.fill_fair_keys.
-- Locks: the row of the queue FOR UPDATE, so that no partition is made meanwhile that gets no key.
CREATE OR REPLACE FUNCTION queen.set_fairness(p_queue text, p_by text, p_given text, p_separator text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue  queen.queues;
    v_before queen.fairness;
BEGIN
    SELECT * INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO v_before FROM queen.fairness f WHERE f.queue_id = v_queue.id;
    IF v_before.given IS NOT DISTINCT FROM p_given THEN
        RETURN false;
    END IF;
    INSERT INTO queen.fairness AS f (queue_id, changed_by, given, filled) VALUES (v_queue.id, p_by, p_given, false)
    ON CONFLICT (queue_id) DO UPDATE
    SET changed_at = clock_timestamp(), changed_by = p_by, given = p_given,
        filled = f.filled AND v_queue.fair_separator IS NOT DISTINCT FROM p_separator;
    UPDATE queen.queues q SET fair_separator = p_separator WHERE q.id = v_queue.id;
    RETURN true;
END $$;
