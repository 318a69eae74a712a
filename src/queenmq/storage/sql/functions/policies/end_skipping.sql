-- Have a message delivered at once to the groups that skip it or whose partition it parks, as if it had never failed. Returns how many groups
-- that are. It stays in `skipped`, but is due: a lease may be out that lies around it (see queen.reached).
-- The caller holds the partition's head. Locks: the rows of such groups, by group.
CREATE OR REPLACE FUNCTION queen.end_skipping(p_partition uuid, p_transaction text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_offset bigint;
    v_it     int8multirange;
    v_groups text[];
BEGIN
    SELECT m."offset" INTO v_offset FROM queen.messages m WHERE m.partition_id = p_partition AND m.transaction_id = p_transaction;
    v_groups := ARRAY(
        SELECT c.consumer_group FROM queen.partition_consumers c
        WHERE c.partition_id = p_partition AND c.skipped IS NOT NULL
          AND EXISTS (SELECT 1 FROM unnest(c.skipped) AS s WHERE s.offsets @> v_offset)
        ORDER BY c.consumer_group FOR NO KEY UPDATE);
    IF cardinality(v_groups) = 0 THEN
        RETURN 0;
    END IF;
    v_it := int8multirange(int8range(v_offset, v_offset, '[]'));
    UPDATE queen.partition_consumers c
    SET skipped = queen.still_skipped(c.skipped, c.position, v_it) || (clock_timestamp(), v_it, false)::queen.skipped
    WHERE c.partition_id = p_partition AND c.consumer_group = ANY (v_groups);
    PERFORM queen.forget_failures(p_partition, v_groups, v_it);
    PERFORM queen.settle(array_fill(p_partition, ARRAY[cardinality(v_groups)]), v_groups, true);
    RETURN cardinality(v_groups);
END $$;
