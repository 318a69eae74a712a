-- Put a stored message to the dead letters: of every group that has not finished it, for which it counts as finished then; of the queue-mode
-- group if there is no such group. Returns whether the message is stored.
-- Locks: the queue FOR KEY SHARE; rows of partition_consumers of the partition by group; then the head, without waiting (see queen.settle).
CREATE OR REPLACE FUNCTION queen.bury_message(p_partition uuid, p_transaction text, p_error text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_offset bigint;
    v_it     int8multirange;
    v_groups text[];
    v_free   text[];
BEGIN
    IF queen.is_of_deleted_queue(p_partition, p_transaction) THEN
        RETURN false;
    END IF;
    SELECT m."offset" INTO v_offset FROM queen.messages m
    WHERE m.partition_id = p_partition AND m.transaction_id = p_transaction;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_it := int8multirange(int8range(v_offset, v_offset, '[]'));
    SELECT array_agg(x.consumer_group) INTO v_groups FROM (
        SELECT c.consumer_group FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition AND c.position < v_offset AND NOT c.done @> v_offset
        ORDER BY c.consumer_group FOR NO KEY UPDATE
    ) x;
    IF v_groups IS NULL THEN
        PERFORM queen.bury(p_partition, '__QUEUE_MODE__', v_it, p_error, NULL);
        RETURN true;
    END IF;
    PERFORM queen.bury(p_partition, c.consumer_group, v_it, p_error, c.failures)
    FROM queen.partition_consumers c WHERE c.partition_id = p_partition AND c.consumer_group = ANY (v_groups);

    WITH moved AS (
        UPDATE queen.partition_consumers c
        SET position = coalesce((SELECT upper(d) - 1 FROM unnest(c.done + v_it) AS d WHERE d @> c.position + 1), c.position),
            done = (c.done + v_it) * int8multirange(int8range(coalesce(
                (SELECT upper(d) FROM unnest(c.done + v_it) AS d WHERE d @> c.position + 1), c.position + 1), NULL)),
            lease_offsets = nullif(c.lease_offsets - v_it, '{}'),
            lease_id = CASE WHEN c.lease_offsets <@ v_it THEN NULL ELSE c.lease_id END,
            lease_expires_at = CASE WHEN c.lease_offsets <@ v_it THEN NULL ELSE c.lease_expires_at END,
            total_consumed = c.total_consumed + 1, retry_at = NULL
        WHERE c.partition_id = p_partition AND c.consumer_group = ANY (v_groups)
        RETURNING c.consumer_group, c.lease_id
    )
    SELECT array_agg(consumer_group) INTO v_free FROM moved WHERE lease_id IS NULL;
    PERFORM queen.forget_failures(p_partition, v_groups, '{}');
    IF v_free IS NOT NULL THEN
        PERFORM queen.settle(array_fill(p_partition, ARRAY[cardinality(v_free)]), v_free, true);
    END IF;
    RETURN true;
END $$;
