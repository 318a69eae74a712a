-- Messages of a partition are gone: what a group had not finished of them it passes without consuming it, and its account says so.
-- The caller holds the partition's head. Locks: the rows of such groups, by group.
CREATE OR REPLACE FUNCTION queen.pass_over(p_partition uuid, p_gone int8multirange)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition AND position < upper(p_gone) - 1
    ORDER BY consumer_group FOR NO KEY UPDATE;
    IF FOUND THEN
        UPDATE queen.partition_consumers c
        SET passed_over = c.passed_over
            + queen.count_offsets(p_gone * int8multirange(int8range(c.position + 1, NULL)) - c.done)
        WHERE c.partition_id = p_partition AND c.position < upper(p_gone) - 1;
        PERFORM queen.forget_failures(p_partition, array_agg(c.consumer_group), p_gone)
        FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition AND c.position < upper(p_gone) - 1 AND c.failures IS NOT NULL
        HAVING count(*) > 0;
    END IF;
END $$;
