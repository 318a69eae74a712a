-- Forget the positions of a group, in one queue or (p_queue null) everywhere; with p_metadata also where it starts.
-- Returns the partitions forgotten. Locks: the queues' rows FOR UPDATE by id, so that no new partition adds the
-- group meanwhile; then the group's rows.
CREATE OR REPLACE FUNCTION queen.delete_group(p_group text, p_queue text, p_metadata boolean)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_deleted integer;
BEGIN
    PERFORM 1 FROM queen.queues q
    WHERE (p_queue IS NULL OR q.name = p_queue)
      AND EXISTS (SELECT 1 FROM queen.partition_consumers c WHERE c.consumer_group = p_group AND c.queue_id = q.id)
    ORDER BY q.id FOR UPDATE;

    PERFORM 1 FROM queen.partition_consumers c
    WHERE c.consumer_group = p_group
      AND (p_queue IS NULL OR c.queue_id = (SELECT id FROM queen.queues WHERE name = p_queue))
    ORDER BY c.partition_id FOR UPDATE;
    DELETE FROM queen.partition_consumers c
    WHERE c.consumer_group = p_group
      AND (p_queue IS NULL OR c.queue_id = (SELECT id FROM queen.queues WHERE name = p_queue));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;

    IF p_metadata THEN
        DELETE FROM queen.consumer_groups WHERE name = p_group AND (p_queue IS NULL OR queue_name = p_queue);
        DELETE FROM queen.partition_subscriptions WHERE name = p_group AND (p_queue IS NULL OR queue_name = p_queue);
    ELSE
        UPDATE queen.consumer_groups SET registered = false
        WHERE name = p_group AND (p_queue IS NULL OR queue_name = p_queue);
    END IF;
    RETURN v_deleted;
END $$;
