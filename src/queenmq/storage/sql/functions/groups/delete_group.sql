-- Forget the positions and attempts of a group, in one queue or (p_queue null) everywhere; with p_metadata also where it starts, its
-- pauses, policies, limits, filters and conflation.
-- Returns the partitions forgotten. Locks: the queues' rows FOR UPDATE by name, so that no new partition adds the
-- group meanwhile; then the group's rows; then those of attempts that nobody has locked.
CREATE OR REPLACE FUNCTION queen.delete_group(p_group text, p_queue text, p_metadata boolean)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_queues  uuid[];
    v_deleted integer;
BEGIN
    SELECT array_agg(x.id) INTO v_queues FROM (
        SELECT q.id FROM queen.queues q
        WHERE q.name IS NOT NULL AND (p_queue IS NULL OR q.name = p_queue)
          AND EXISTS (SELECT 1 FROM queen.partition_consumers c WHERE c.queue_id = q.id AND c.consumer_group = p_group)
        ORDER BY q.name FOR UPDATE OF q
    ) x;

    PERFORM 1 FROM queen.partition_consumers
    WHERE queue_id = ANY (v_queues) AND consumer_group = p_group
    ORDER BY partition_id FOR UPDATE;
    -- Without waiting: who deletes messages deletes their attempts first, and waits for the rows of groups afterwards. What is left
    -- goes with its messages.
    DELETE FROM queen.attempts WHERE ctid = ANY (ARRAY(
        SELECT a.ctid FROM queen.partition_consumers c
        JOIN queen.attempts a ON a.partition_id = c.partition_id AND a.consumer_group = c.consumer_group
        WHERE c.queue_id = ANY (v_queues) AND c.consumer_group = p_group LIMIT 100000 FOR UPDATE OF a SKIP LOCKED));
    DELETE FROM queen.partition_consumers WHERE queue_id = ANY (v_queues) AND consumer_group = p_group;
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    DELETE FROM queen.filtered WHERE queue_id = ANY (v_queues) AND consumer_group = p_group;
    DELETE FROM queen.ready_floors WHERE queue_id = ANY (v_queues) AND consumer_group = p_group;
    DELETE FROM queen.breakers WHERE queue_id = ANY (v_queues) AND consumer_group = p_group;
    -- Without its last group everything that is stored counts.
    INSERT INTO queen.queue_size_changes (queue_id)
    SELECT q.id FROM queen.queues q WHERE q.id = ANY (v_queues) AND q.max_size > 0;

    IF p_metadata THEN
        DELETE FROM queen.pauses s USING queen.queues q
        WHERE q.id = s.queue_id AND s.consumer_group = p_group AND (p_queue IS NULL OR q.name = p_queue);
        DELETE FROM queen.policies y USING queen.queues q
        WHERE q.id = y.queue_id AND y.consumer_group = p_group AND (p_queue IS NULL OR q.name = p_queue);
        PERFORM queen.set_limits(l.queue_id, p_group, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
        FROM queen.limits l JOIN queen.queues q ON q.id = l.queue_id
        WHERE l.consumer_group = p_group AND (p_queue IS NULL OR q.name = p_queue);
        DELETE FROM queen.group_filters s USING queen.queues q
        WHERE q.id = s.queue_id AND s.consumer_group = p_group AND (p_queue IS NULL OR q.name = p_queue);
        DELETE FROM queen.conflating_groups s USING queen.queues q
        WHERE q.id = s.queue_id AND s.consumer_group = p_group AND (p_queue IS NULL OR q.name = p_queue);
        DELETE FROM queen.consumer_groups WHERE name = p_group AND (p_queue IS NULL OR queue_name = p_queue);
        DELETE FROM queen.partition_subscriptions WHERE name = p_group AND (p_queue IS NULL OR queue_name = p_queue);
    ELSE
        UPDATE queen.consumer_groups SET registered = false, placed_upto = NULL
        WHERE name = p_group AND (p_queue IS NULL OR queue_name = p_queue);
    END IF;
    RETURN v_deleted;
END $$;
