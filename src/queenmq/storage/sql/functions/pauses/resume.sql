-- End a pause of exactly this queue, group and partition (see queen.pause); other pauses of the queue stay. A breaker that has paused the group
-- is closed. False if there is none, and null if there is no such queue. Locks: the row of the queue; the row of queen.breakers.
CREATE OR REPLACE FUNCTION queen.resume(p_queue text, p_group text, p_partition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue  uuid;
    v_closed boolean;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE queen.breakers b SET opened_at = NULL, probe_at = NULL, probe_lease = NULL, outcomes = ''
    WHERE b.queue_id = v_queue AND b.consumer_group = p_group AND p_partition = '' AND b.opened_at IS NOT NULL;
    v_closed := FOUND;
    DELETE FROM queen.pauses p WHERE p.queue_id = v_queue AND p.consumer_group = p_group AND p.partition_name = p_partition;
    IF NOT FOUND THEN
        RETURN v_closed;
    END IF;
    UPDATE queen.queues q SET has_pauses = EXISTS (SELECT 1 FROM queen.pauses p WHERE p.queue_id = v_queue) WHERE q.id = v_queue;
    RETURN true;
END $$;
