-- Move every group of a partition that holds no live lease over the messages older than p_before (queen.skip_older).
-- Returns the lowest position that any group then has; null without groups.
-- Locks: the groups' rows that are free (SKIP LOCKED).
CREATE OR REPLACE FUNCTION queen.skip_free_groups(
    p_partition uuid, p_before timestamptz, p_bury boolean, p_error text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_groups text[];
BEGIN
    SELECT array_agg(x.consumer_group) INTO v_groups FROM (
        SELECT consumer_group FROM queen.partition_consumers
        WHERE partition_id = p_partition AND (lease_id IS NULL OR lease_expires_at <= clock_timestamp())
        FOR NO KEY UPDATE SKIP LOCKED
    ) x;
    IF v_groups IS NOT NULL THEN
        PERFORM queen.skip_older(p_partition, g, p_before, p_bury, p_error) FROM unnest(v_groups) AS t (g);
        PERFORM queen.settle(array_fill(p_partition, ARRAY[cardinality(v_groups)]), v_groups, false);
    END IF;
    RETURN (SELECT min(position) FROM queen.partition_consumers WHERE partition_id = p_partition);
END $$;
