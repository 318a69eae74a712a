-- Delete a queue with everything of it. Returns whether it existed.
-- Locks: the queue FOR UPDATE, then its heads by partition and its groups' rows by (partition, group), in the order in
-- which pushes and acks take them, so that the cascade meets nothing that waits for it.
CREATE OR REPLACE FUNCTION queen.delete_queue(p_queue text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue uuid;
BEGIN
    SELECT id INTO v_queue FROM queen.queues WHERE name = p_queue FOR UPDATE;
    IF NOT FOUND THEN
        DELETE FROM queen.consumer_groups WHERE queue_name = p_queue;
        DELETE FROM queen.partition_subscriptions WHERE queue_name = p_queue;
        RETURN false;
    END IF;
    PERFORM 1 FROM queen.partition_lookup WHERE queue_id = v_queue ORDER BY partition_id FOR UPDATE;
    PERFORM 1 FROM queen.partition_consumers WHERE queue_id = v_queue
    ORDER BY partition_id, consumer_group FOR UPDATE;
    DELETE FROM queen.queues WHERE id = v_queue;
    RETURN true;
END $$;
