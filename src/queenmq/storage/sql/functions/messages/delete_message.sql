-- Delete one message with its traces, attempts and dead letters. A lease over it goes on without it, and ends if nothing is left of it. The gap in the
-- offsets is written down.
-- Returns whether there was anything. Locks: the queue FOR KEY SHARE (see queen.trim); the partition's head;
-- then what queen.unbury, queen.pass_over and queen.shrink_leases take.
CREATE OR REPLACE FUNCTION queen.delete_message(p_partition uuid, p_transaction text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_head   queen.partition_lookup;
    v_offset bigint;
    v_first  bigint;
    v_gone   int8multirange;
    v_groups text[];
BEGIN
    IF queen.is_of_deleted_queue(p_partition, p_transaction) THEN
        RETURN false;
    END IF;
    SELECT * INTO v_head FROM queen.partition_lookup WHERE partition_id = p_partition FOR NO KEY UPDATE;
    v_groups := queen.unbury(p_partition, p_transaction);
    DELETE FROM queen.message_traces WHERE partition_id = p_partition AND transaction_id = p_transaction;
    DELETE FROM queen.messages WHERE partition_id = p_partition AND transaction_id = p_transaction
    RETURNING "offset" INTO v_offset;
    IF v_offset IS NULL THEN
        RETURN v_groups IS NOT NULL;
    END IF;
    DELETE FROM queen.attempts WHERE partition_id = p_partition AND "offset" = v_offset;
    SELECT m."offset" INTO v_first FROM queen.messages m
    WHERE m.partition_id = p_partition AND m."offset" >= v_head.first_offset ORDER BY m."offset" LIMIT 1;
    v_first := coalesce(v_first, v_head.last_offset + 1);
    UPDATE queen.partition_lookup
    SET first_offset = v_first,
        holes = greatest(0, last_offset - v_first + 1 - (last_offset - first_offset + 1 - holes - 1))
    WHERE partition_id = p_partition;
    IF v_first > v_head.first_offset THEN
        PERFORM queen.note_age(p_partition);
    END IF;

    PERFORM queen.note_deleted(p_partition, v_offset, v_offset);
    v_gone := int8multirange(int8range(v_offset, v_offset, '[]'));
    PERFORM queen.pass_over(p_partition, v_gone);
    PERFORM queen.shrink_leases(p_partition, v_gone);
    RETURN true;
END $$;
