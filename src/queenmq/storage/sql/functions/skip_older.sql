-- Move a group over the messages of a partition that are older than p_before, as if they were finished; what it had
-- not finished goes to the dead letters if p_bury. The caller holds the row, which is not under a live lease.
CREATE OR REPLACE FUNCTION queen.skip_older(
    p_partition uuid, p_group text, p_before timestamptz, p_bury boolean, p_error text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_row  queen.partition_consumers;
    v_upto bigint := queen.offset_before(p_partition, p_before, true);
BEGIN
    SELECT * INTO v_row FROM queen.partition_consumers
    WHERE partition_id = p_partition AND consumer_group = p_group;
    IF v_upto <= v_row.position THEN
        RETURN;
    END IF;
    IF p_bury THEN
        PERFORM queen.bury(p_partition, p_group,
            int8multirange(int8range(v_row.position + 1, v_upto, '[]')) - v_row.done, p_error, v_row.attempts);
    END IF;
    UPDATE queen.partition_consumers
    SET position = v_upto, done = done * int8multirange(int8range(v_upto + 1, NULL)),
        lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, attempts = 0, retry_at = NULL
    WHERE partition_id = p_partition AND consumer_group = p_group;
END $$;
