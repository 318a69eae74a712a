-- Delete the messages of a partition up to an offset, with their traces and attempts. Returns how many; 0 if a push holds the head just
-- now. A lease over them goes on without them, and ends if nothing is left of it.
-- The caller holds the queue's row FOR KEY SHARE, so that no group subscribes meanwhile whose account would not know of it.
-- Locks: the partition's head, without waiting; its row of partition_ages; then what queen.pass_over and queen.shrink_leases take.
CREATE OR REPLACE FUNCTION queen.trim(p_partition uuid, p_upto bigint)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_gone    int8multirange := int8multirange(int8range(NULL, p_upto, '(]'));
    v_first   bigint;
    v_deleted integer;
BEGIN
    SELECT first_offset INTO v_first FROM queen.partition_lookup
    WHERE partition_id = p_partition ORDER BY generation DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM queen.messages WHERE partition_id = p_partition AND "offset" <= p_upto
        RETURNING transaction_id
    ), traces AS (
        DELETE FROM queen.message_traces t USING gone g
        WHERE t.partition_id = p_partition AND t.transaction_id = g.transaction_id
    )
    SELECT count(*) INTO v_deleted FROM gone;
    DELETE FROM queen.attempts WHERE partition_id = p_partition AND "offset" <= p_upto;
    UPDATE queen.partition_lookup
    SET first_offset = p_upto + 1, holes = greatest(0, holes - (p_upto - first_offset + 1 - v_deleted))
    WHERE partition_id = p_partition AND first_offset <= p_upto;
    DELETE FROM queen.deleted_offsets WHERE partition_id = p_partition AND first_offset <= p_upto AND last_offset <= p_upto;
    PERFORM queen.note_age(p_partition);

    PERFORM queen.pass_over(p_partition, int8multirange(int8range(least(v_first, p_upto + 1), p_upto + 1)));
    PERFORM queen.shrink_leases(p_partition, v_gone);
    RETURN v_deleted;
END $$;
