-- End a pause of exactly this queue, group and partition (see queen.pause); other pauses of the queue stay. False if there is none, and
-- null if there is no such queue. Locks: the row of the queue.
CREATE OR REPLACE FUNCTION queen.resume(p_queue text, p_group text, p_partition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue uuid;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM queen.pauses p WHERE p.queue_id = v_queue AND p.consumer_group = p_group AND p.partition_name = p_partition;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE queen.queues q SET has_pauses = EXISTS (SELECT 1 FROM queen.pauses p WHERE p.queue_id = v_queue) WHERE q.id = v_queue;
    RETURN true;
END $$;
