-- Messages of a partition are gone: what a group had not finished of them it passes without consuming it, and its account says so.
-- What was kept back behind them is ready.
-- The caller holds the partition's head. Locks: the rows of such groups, by group.
CREATE OR REPLACE FUNCTION queen.pass_over(p_partition uuid, p_gone int8multirange)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_skipping text[];
BEGIN
    PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition AND position < upper(p_gone) - 1
    ORDER BY consumer_group FOR NO KEY UPDATE;
    IF FOUND THEN
        UPDATE queen.partition_consumers c
        SET passed_over = c.passed_over
            + queen.count_offsets(p_gone * int8multirange(int8range(c.position + 1, NULL)) - c.done)
        WHERE c.partition_id = p_partition AND c.position < upper(p_gone) - 1;
        v_skipping := ARRAY(
            SELECT c.consumer_group FROM queen.partition_consumers c
            WHERE c.partition_id = p_partition AND c.position < upper(p_gone) - 1 AND c.skipped IS NOT NULL);
        PERFORM queen.forget_failures(p_partition, array_agg(c.consumer_group), p_gone, true)
        FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition AND c.position < upper(p_gone) - 1 AND (c.failures IS NOT NULL OR c.skipped IS NOT NULL)
        HAVING count(*) > 0;
        IF cardinality(v_skipping) > 0 THEN
            PERFORM queen.settle(array_fill(p_partition, ARRAY[cardinality(v_skipping)]), v_skipping, true);
        END IF;
    END IF;
END $$;
