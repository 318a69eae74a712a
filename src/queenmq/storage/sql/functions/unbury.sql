-- Take the dead letters of a message back. Returns the groups that had given it up, null if there were none.
-- The caller holds the partition's head. Locks: the groups' rows of partition_consumers, by group; the letters and their accounts.
CREATE OR REPLACE FUNCTION queen.unbury(p_partition uuid, p_transaction text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[];
BEGIN
    -- In the order of an ack that buries: the group's row before its letters.
    PERFORM 1 FROM queen.partition_consumers c
    WHERE c.partition_id = p_partition AND c.consumer_group IN (
        SELECT d.consumer_group FROM queen.dead_letter_queue d
        WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction)
    ORDER BY c.consumer_group FOR NO KEY UPDATE;
    WITH taken AS (
        DELETE FROM queen.dead_letter_queue WHERE partition_id = p_partition AND transaction_id = p_transaction
        RETURNING consumer_group, "offset"
    ), settled AS (
        UPDATE queen.dead_letter_accounts a SET letters = a.letters - t.letters, offsets = a.offsets - t.offsets
        FROM (SELECT consumer_group, count(*) AS letters, sum("offset") AS offsets FROM taken GROUP BY consumer_group) t
        WHERE a.partition_id = p_partition AND a.consumer_group = t.consumer_group
    )
    SELECT array_agg(DISTINCT consumer_group) INTO v_groups FROM taken;
    RETURN v_groups;
END $$;
