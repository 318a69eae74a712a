-- One bounded step of deleting every message of a queue, or of one partition of it: from the partition after p_after on, until
-- about p_limit messages are gone or p_limit partitions are seen. Leases over them end, groups have read everything; dead letters
-- stay. Returns how many were deleted, and whether that was all or after which partition to go on.
-- Locks: the queue FOR KEY SHARE (see queen.trim); heads by partition, waiting for them; then what queen.trim takes.
CREATE OR REPLACE FUNCTION queen.clear(
    p_queue text, p_partition text, p_after uuid, p_limit integer, OUT deleted bigint, OUT next uuid, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_head queen.partition_lookup;
    v_seen integer := 0;
    v_upto bigint;
BEGIN
    deleted := 0;
    next := p_after;
    finished := false;
    PERFORM 1 FROM queen.queues WHERE name = p_queue FOR KEY SHARE;
    FOR v_head IN
        SELECT l.* FROM queen.queues q
        JOIN queen.partition_lookup l ON l.queue_id = q.id
        WHERE q.name = p_queue AND l.partition_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
          AND (p_partition IS NULL OR l.partition_id = (
              SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = p_partition))
        ORDER BY l.partition_id LIMIT p_limit
    LOOP
        v_seen := v_seen + 1;
        IF v_head.first_offset <= v_head.last_offset THEN
            PERFORM 1 FROM queen.partition_lookup WHERE partition_id = v_head.partition_id FOR NO KEY UPDATE;
            v_upto := least(v_head.last_offset, v_head.first_offset + p_limit - 1);
            deleted := deleted + queen.trim(v_head.partition_id, v_upto);
            IF v_upto < v_head.last_offset THEN
                RETURN;     -- the rest of it in the next step
            END IF;
        END IF;
        next := v_head.partition_id;
        IF deleted >= p_limit THEN
            RETURN;
        END IF;
    END LOOP;
    finished := v_seen < p_limit;
END $$;
