-- Take the dead letters of a message back. Returns the groups that had given it up, null if there were none.
-- The caller holds the partition's head. Locks: the groups' rows of partition_consumers, by group; the letters and their accounts.
CREATE OR REPLACE FUNCTION queen.unbury(p_partition uuid, p_transaction text) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    -- In the order of an ack that buries: the group's row before its letters.
    PERFORM 1 FROM queen.partition_consumers c
    WHERE c.partition_id = p_partition AND c.consumer_group IN (
        SELECT d.consumer_group FROM queen.dead_letter_queue d
        WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction)
    ORDER BY c.consumer_group FOR NO KEY UPDATE;
    RETURN queen.forget_letters(ARRAY(
        SELECT d.id FROM queen.dead_letter_queue d
        WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction));
END $$;
