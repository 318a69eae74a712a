-- Delete the messages of a partition up to an offset, with their traces. Returns how many; 0 if a push holds the
-- head just now. Locks: the partition's head, without waiting.
CREATE OR REPLACE FUNCTION queen.trim(p_partition uuid, p_upto bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_deleted integer;
BEGIN
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_partition FOR NO KEY UPDATE SKIP LOCKED;
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
    UPDATE queen.partition_lookup SET first_offset = greatest(first_offset, p_upto + 1) WHERE partition_id = p_partition;
    RETURN v_deleted;
END $$;
