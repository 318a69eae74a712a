-- Whether no other transaction holds the head of a partition, which is locked then. One that is gone is free.
-- Locks: that row, without waiting.
CREATE OR REPLACE FUNCTION queen.head_is_free(p_partition uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_partition FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (SELECT 1 FROM queen.partition_lookup WHERE partition_id = p_partition);
END $$;
