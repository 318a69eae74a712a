-- Pause a queue, a group of it (p_group not empty), or a partition of that group (p_partition not empty). A pause that is there stays as it
-- is. Returns it, and whether it is new; all null if there is no such queue, or if it has a thousand pauses (is_new is false then).
-- When this is committed, no later pop delivers what is paused. Leases that are out stay. Locks: the row of the queue.
CREATE OR REPLACE FUNCTION queen.pause(
    p_queue text, p_group text, p_partition text, p_by text, p_reason text,
    OUT paused_at timestamptz, OUT paused_by text, OUT reason text, OUT is_new boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue uuid;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    is_new := false;
    SELECT p.paused_at, p.paused_by, p.reason INTO paused_at, paused_by, reason FROM queen.pauses p
    WHERE p.queue_id = v_queue AND p.consumer_group = p_group AND p.partition_name = p_partition;
    IF FOUND OR (SELECT count(*) FROM queen.pauses p WHERE p.queue_id = v_queue) >= 1000 THEN
        RETURN;
    END IF;
    INSERT INTO queen.pauses AS p (queue_id, consumer_group, partition_name, paused_by, reason)
    VALUES (v_queue, p_group, p_partition, p_by, p_reason)
    RETURNING p.paused_at, p.paused_by, p.reason, true INTO paused_at, paused_by, reason, is_new;
    UPDATE queen.queues q SET has_pauses = true WHERE q.id = v_queue AND NOT q.has_pauses;
END $$;
