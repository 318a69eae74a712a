-- Messages of a partition are gone: leases over them go on without them, and end if nothing is left of them.
-- The caller holds the partition's head. Locks: the rows of groups that hold such a lease, by group; then what queen.settle takes.
CREATE OR REPLACE FUNCTION queen.shrink_leases(p_partition uuid, p_gone int8multirange)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[];
BEGIN
    PERFORM 1 FROM queen.partition_consumers WHERE partition_id = p_partition AND lease_offsets && p_gone
    ORDER BY consumer_group FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH shrunk AS (
        UPDATE queen.partition_consumers
        SET lease_offsets = nullif(lease_offsets - p_gone, '{}'),
            lease_id = CASE WHEN lease_offsets <@ p_gone THEN NULL ELSE lease_id END,
            lease_expires_at = CASE WHEN lease_offsets <@ p_gone THEN NULL ELSE lease_expires_at END
        WHERE partition_id = p_partition AND lease_offsets && p_gone
        RETURNING consumer_group, lease_id
    )
    SELECT array_agg(consumer_group) INTO v_groups FROM shrunk WHERE lease_id IS NULL;
    IF v_groups IS NOT NULL THEN
        PERFORM queen.settle(array_fill(p_partition, ARRAY[cardinality(v_groups)]), v_groups, true);
    END IF;
END $$;
