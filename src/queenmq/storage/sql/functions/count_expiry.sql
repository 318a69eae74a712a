-- For queues with dlqAfterMaxRetries: an expired lease counts as a failed attempt, and when the attempts are used up,
-- the first message that the lease left unfinished goes to the dead letters. The caller holds the row.
CREATE OR REPLACE FUNCTION queen.count_expiry(p_partition uuid, p_group text, p_retry_limit integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_row    queen.partition_consumers;
    v_poison bigint;
BEGIN
    SELECT * INTO v_row FROM queen.partition_consumers
    WHERE partition_id = p_partition AND consumer_group = p_group AND lease_id IS NOT NULL;
    IF NOT FOUND OR isempty(v_row.lease_offsets) THEN
        RETURN;
    END IF;
    v_poison := lower(v_row.lease_offsets);
    IF v_row.attempts < p_retry_limit THEN
        UPDATE queen.partition_consumers
        SET attempts = attempts + 1, lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL
        WHERE partition_id = p_partition AND consumer_group = p_group;
        RETURN;
    END IF;
    PERFORM queen.bury(p_partition, p_group, int8multirange(int8range(v_poison, v_poison, '[]')),
                       'Lease expired too often', v_row.attempts);
    UPDATE queen.partition_consumers
    SET attempts = 0, lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL,
        done = done + int8multirange(int8range(v_poison, v_poison, '[]')), total_consumed = total_consumed + 1
    WHERE partition_id = p_partition AND consumer_group = p_group;
END $$;
