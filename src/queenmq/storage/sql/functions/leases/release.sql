-- Give leases back whose client went away before it got the messages. Costs no attempt.
-- Locks: rows of partition_consumers by (partition, group); then what queen.settle takes, without waiting.
CREATE OR REPLACE FUNCTION queen.release(p_lease uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_partitions uuid[];
    v_groups     text[];
BEGIN
    PERFORM 1 FROM queen.partition_consumers WHERE lease_id = ANY (p_lease)
    ORDER BY partition_id, consumer_group FOR NO KEY UPDATE;

    WITH freed AS (
        UPDATE queen.partition_consumers
        SET lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, generation = generation + 1
        WHERE lease_id = ANY (p_lease)
        RETURNING partition_id, consumer_group
    )
    SELECT array_agg(partition_id), array_agg(consumer_group) INTO v_partitions, v_groups FROM freed;
    IF v_partitions IS NOT NULL THEN
        PERFORM queen.settle(v_partitions, v_groups, false);
    END IF;
END $$;
