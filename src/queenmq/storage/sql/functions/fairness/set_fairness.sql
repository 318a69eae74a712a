-- Share the deliveries of a queue out among keys that are made of the names of its partitions; p_given null takes that back. The keys are then to be
-- written with queen.fill_fair_keys.
-- The caller holds the row of the queue FOR UPDATE, so that no partition is made meanwhile that gets no key.
CREATE OR REPLACE FUNCTION queen.set_fairness(p_queue queen.queues, p_by text, p_given text, p_separator text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO queen.fairness AS f (queue_id, changed_by, given, filled) VALUES (p_queue.id, p_by, p_given, false)
    ON CONFLICT (queue_id) DO UPDATE
    SET changed_at = clock_timestamp(), changed_by = p_by, given = p_given,
        filled = f.filled AND p_queue.fair_separator IS NOT DISTINCT FROM p_separator;
    UPDATE queen.queues q SET fair_separator = p_separator WHERE q.id = p_queue.id;
$$;
