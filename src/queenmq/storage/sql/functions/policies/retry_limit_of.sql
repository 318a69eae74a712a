-- How often a message of a queue may fail for a group before it is given up.
CREATE OR REPLACE FUNCTION queen.retry_limit_of(p_queue queen.queues, p_group text) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT p_queue.has_policies THEN
        RETURN p_queue.retry_limit;
    END IF;
    RETURN (queen.retry_rule(p_queue, p_group)).retry_limit;
END $$;
