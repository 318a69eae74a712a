-- Move every group of a partition that holds no live lease over the messages up to p_upto (queen.skip_over). A partition that no
-- group reads has its dead letters under the queue-mode group. Returns the lowest position that any group then has, or
-- p_upto without groups: up to there no group needs the messages.
-- Locks: the groups' rows that are free (SKIP LOCKED).
CREATE OR REPLACE FUNCTION queen.skip_free_groups(p_partition uuid, p_upto bigint, p_bury boolean, p_error text)
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
        PERFORM queen.skip_over(p_partition, g, p_upto, p_bury, p_error) FROM unnest(v_groups) AS t (g);
        PERFORM queen.settle(array_fill(p_partition, ARRAY[cardinality(v_groups)]), v_groups, false);
    ELSIF p_bury AND NOT EXISTS (SELECT 1 FROM queen.partition_consumers WHERE partition_id = p_partition) THEN
        PERFORM queen.bury(p_partition, '__QUEUE_MODE__', int8multirange(int8range(1, p_upto, '[]')), p_error, NULL);
    END IF;
    RETURN coalesce((SELECT min(position) FROM queen.partition_consumers WHERE partition_id = p_partition), p_upto);
END $$;
