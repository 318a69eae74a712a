-- One bounded step of deleting the messages of a queue, or of one partition of it, that were there at p_bound (null: that are there now):
-- from the partition after p_after on, until about p_limit messages are gone or p_limit partitions are seen. Leases over them
-- end, groups have read everything; dead letters stay. Returns how many were deleted, and whether that was all or after which
-- partition to go on.
-- Locks: the queue FOR KEY SHARE (see queen.trim); heads by partition, waiting for them; then what queen.trim takes.
CREATE OR REPLACE FUNCTION queen.clear(
    p_queue uuid, p_partition text, p_after uuid, p_bound timestamptz, p_limit integer,
    OUT deleted bigint, OUT next uuid, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_head queen.partition_lookup;
    v_seen integer := 0;
    v_last bigint;
    v_upto bigint;
BEGIN
    deleted := 0;
    next := p_after;
    finished := false;
    PERFORM 1 FROM queen.queues WHERE id = p_queue FOR KEY SHARE;
    FOR v_head IN
        SELECT l.* FROM queen.partition_lookup l
        WHERE l.queue_id = p_queue AND l.partition_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
          AND (p_partition IS NULL OR l.partition_id = (
              SELECT p.id FROM queen.partitions p WHERE p.queue_id = p_queue AND p.name = p_partition))
        ORDER BY l.partition_id LIMIT p_limit
    LOOP
        v_seen := v_seen + 1;
        IF v_head.first_offset <= v_head.last_offset THEN
            PERFORM 1 FROM queen.partition_lookup WHERE partition_id = v_head.partition_id FOR NO KEY UPDATE;
            v_last := CASE WHEN p_bound IS NULL THEN v_head.last_offset
                           ELSE least(v_head.last_offset, queen.offset_before(v_head.partition_id, p_bound, true)) END;
            v_upto := least(v_last, v_head.first_offset + p_limit - 1);
            IF v_upto >= v_head.first_offset THEN
                deleted := deleted + queen.trim(v_head.partition_id, v_upto);
            END IF;
            IF v_upto < v_last THEN
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
