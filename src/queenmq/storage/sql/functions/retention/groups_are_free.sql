-- Whether no other transaction holds the rows of the groups that the removal of a partition's messages up to p_upto would change. They are
-- locked then. Background work that must not wait for a stranger's transaction leaves a partition alone that is not free.
-- Locks: these rows, without waiting.
CREATE OR REPLACE FUNCTION queen.groups_are_free(p_partition uuid, p_upto bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT (
        SELECT count(*) FROM (
            SELECT 1 FROM queen.partition_consumers c
            WHERE c.partition_id = p_partition
              AND (c.position < p_upto OR c.lease_offsets && int8multirange(int8range(NULL, p_upto, '(]')))
            FOR NO KEY UPDATE SKIP LOCKED
        ) free
    ) = (
        SELECT count(*) FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition
          AND (c.position < p_upto OR c.lease_offsets && int8multirange(int8range(NULL, p_upto, '(]')))
    )
$$;
