-- Write down that the messages of these offsets, both included, are gone on purpose. Ranges that touch become one, so that a partition has
-- never more of them than messages, and one.
-- Locks: none; the caller holds the partition's head.
CREATE OR REPLACE FUNCTION queen.note_deleted(p_partition uuid, p_first bigint, p_last bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
    v_last  bigint;
BEGIN
    WITH near AS (
        DELETE FROM queen.deleted_offsets d
        WHERE d.partition_id = p_partition AND d.last_offset >= p_first - 1 AND d.first_offset <= p_last + 1
          AND d.first_offset >= coalesce((
              SELECT e.first_offset FROM queen.deleted_offsets e
              WHERE e.partition_id = p_partition AND e.first_offset < p_first ORDER BY e.first_offset DESC LIMIT 1), p_first)
        RETURNING d.first_offset, d.last_offset
    )
    SELECT least(p_first, min(first_offset)), greatest(p_last, max(last_offset)) INTO v_first, v_last FROM near;
    INSERT INTO queen.deleted_offsets (partition_id, first_offset, last_offset) VALUES (p_partition, v_first, v_last);
END $$;
