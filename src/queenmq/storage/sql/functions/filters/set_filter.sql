-- Give a group a filter for a queue, or (p_filter null) take it away. What was passed over stays so; what is unread is examined anew.
-- Returns the filter, with all fields null for none; `problem` says why nothing was done: 'no queue', or 'encrypted' for a filter that
-- reads payloads where these are encrypted. When this is committed, later pops follow it. Locks: the row of the queue.
CREATE OR REPLACE FUNCTION queen.set_filter(
    p_queue text, p_group text, p_filter text, p_path text, p_reads_payload boolean, p_by text,
    OUT problem text, OUT filter text, OUT set_at timestamptz, OUT set_by text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue queen.queues;
BEGIN
    SELECT * INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        problem := 'no queue';
        RETURN;
    END IF;
    IF p_reads_payload AND v_queue.encryption_enabled THEN
        problem := 'encrypted';
        RETURN;
    END IF;
    IF p_filter IS NULL THEN
        DELETE FROM queen.group_filters f WHERE f.queue_id = v_queue.id AND f.consumer_group = p_group;
    ELSE
        INSERT INTO queen.group_filters AS f (queue_id, consumer_group, filter, path, reads_payload, set_by)
        VALUES (v_queue.id, p_group, p_filter, p_path::jsonpath, p_reads_payload, p_by)
        ON CONFLICT (queue_id, consumer_group) DO UPDATE
        SET filter = excluded.filter, path = excluded.path, reads_payload = excluded.reads_payload,
            set_at = clock_timestamp(), set_by = excluded.set_by
        RETURNING f.filter, f.set_at, f.set_by INTO filter, set_at, set_by;
    END IF;
    UPDATE queen.queues q SET has_filters = EXISTS (SELECT 1 FROM queen.group_filters f WHERE f.queue_id = v_queue.id)
    WHERE q.id = v_queue.id AND q.has_filters <> EXISTS (SELECT 1 FROM queen.group_filters f WHERE f.queue_id = v_queue.id);
END $$;
