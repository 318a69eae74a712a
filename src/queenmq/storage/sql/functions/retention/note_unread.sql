-- Write down since when something is unread in a partition (queen.partition_ages), which eviction has found at p_seen and without anything to
-- do; `infinity` if every group has read everything. Not while somebody pushes to the partition, and not if it was changed meanwhile.
-- Locks: the partition's head, without waiting; its row of partition_ages.
CREATE OR REPLACE FUNCTION queen.note_unread(p_partition uuid, p_seen timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    SELECT first_offset INTO v_first FROM queen.partition_lookup WHERE partition_id = p_partition FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        -- First the row and then the groups' positions: an UPDATE that waits for the row would use positions that it has read before.
        PERFORM 1 FROM queen.partition_ages a WHERE a.partition_id = p_partition AND a.unread_at = p_seen FOR NO KEY UPDATE;
    END IF;
    IF FOUND THEN
        UPDATE queen.partition_ages a
        SET unread_at = coalesce((
            SELECT m.created_at FROM queen.messages m
            WHERE m.partition_id = p_partition AND m."offset" > greatest(v_first - 1, (
                SELECT min(c.position) FROM queen.partition_consumers c WHERE c.partition_id = p_partition))
            ORDER BY m."offset" LIMIT 1), 'infinity')
        WHERE a.partition_id = p_partition;
    END IF;
END $$;
