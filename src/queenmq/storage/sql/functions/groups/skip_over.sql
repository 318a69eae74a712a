-- Move a group over the messages of a partition up to p_upto, as if they were finished; what it had not finished goes to the
-- dead letters if p_bury. The caller holds the row, which is not under a live lease.
CREATE OR REPLACE FUNCTION queen.skip_over(
    p_partition uuid, p_group text, p_upto bigint, p_bury boolean, p_error text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_row queen.partition_consumers;
BEGIN
    SELECT * INTO v_row FROM queen.partition_consumers
    WHERE partition_id = p_partition AND consumer_group = p_group ORDER BY generation DESC LIMIT 1;
    IF p_upto <= v_row.position THEN
        RETURN;
    END IF;
    IF p_bury THEN
        PERFORM queen.bury(p_partition, p_group,
            int8multirange(int8range(v_row.position + 1, p_upto, '[]')) - v_row.done, p_error, v_row.failures);
    END IF;
    UPDATE queen.partition_consumers
    SET passed_over = passed_over + queen.count_offsets(int8multirange(int8range(position + 1, p_upto, '[]')) - done),
        position = p_upto, done = done * int8multirange(int8range(p_upto + 1, NULL)),
        lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, retry_at = NULL
    WHERE partition_id = p_partition AND consumer_group = p_group;
    IF v_row.failures IS NOT NULL OR v_row.skipped IS NOT NULL THEN
        PERFORM queen.forget_failures(p_partition, ARRAY[p_group], '{}');
    END IF;
END $$;
