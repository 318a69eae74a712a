-- Remember that leases of a group have ended without a word, each as an attempt of the first message that it left unfinished: the one that
-- its consumer was at. Once for each lease. The caller holds the rows, and has found leases in them.
CREATE OR REPLACE FUNCTION queen.note_expired(p_partitions uuid[], p_group text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_parts   uuid[];
    v_offsets bigint[];
BEGIN
    WITH noted AS (
        INSERT INTO queen.attempts (partition_id, "offset", consumer_group, ended_at, outcome, lease_id)
        SELECT c.partition_id, lower(c.lease_offsets), p_group, c.lease_expires_at, 'expired', c.lease_id
        FROM unnest(p_partitions) AS t (id)
        CROSS JOIN LATERAL (
            SELECT n.* FROM queen.partition_consumers n
            WHERE n.partition_id = t.id AND n.consumer_group = p_group ORDER BY n.generation DESC LIMIT 1
        ) c
        WHERE c.lease_id IS NOT NULL AND c.lease_expires_at <= clock_timestamp() AND NOT isempty(c.lease_offsets)
          AND NOT EXISTS (
              SELECT 1 FROM queen.attempts a
              WHERE a.partition_id = c.partition_id AND a."offset" = lower(c.lease_offsets) AND a.consumer_group = p_group
                AND a.lease_id = c.lease_id)
        RETURNING partition_id, "offset"
    )
    SELECT array_agg(partition_id), array_agg("offset") INTO v_parts, v_offsets FROM noted;
    IF v_parts IS NOT NULL THEN
        PERFORM queen.forget_attempts(v_parts, v_offsets, array_fill(p_group, ARRAY[cardinality(v_parts)]));
    END IF;
END $$;
