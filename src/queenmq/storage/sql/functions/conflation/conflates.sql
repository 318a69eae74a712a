-- Whether a group gets only the newest message of each partition of a queue.
CREATE OR REPLACE FUNCTION queen.conflates(p_queue uuid, p_group text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM queen.conflating_groups g WHERE g.queue_id = p_queue AND g.consumer_group = p_group)
$$;
