-- One bounded step of retention over a queue: from the partition after p_after on, delete what is too old
-- (retentionSeconds, ttl) or old and read by every group (completedRetentionSeconds), until about p_limit messages are gone or
-- p_limit partitions are seen. Of a queue with archiveBeforeDelete only what is archived goes.
-- Returns how many were deleted, how many partitions were finished, and whether that was all or after which partition to go on.
-- Locks: the queue FOR KEY SHARE (see queen.trim); heads that are free (SKIP LOCKED), one partition after the other; a busy one has its
-- turn in the next sweep.
CREATE OR REPLACE FUNCTION queen.retain(
    p_queue uuid, p_after uuid, p_limit integer, OUT deleted integer, OUT seen integer, OUT next uuid, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
    v_head  queen.partition_lookup;
    v_old   timestamptz;
    v_spent timestamptz;
    v_upto  bigint;
    v_more  boolean;
    v_gone  integer;
    v_before uuid;
BEGIN
    deleted := 0;
    seen := 0;
    next := p_after;
    finished := true;
    SELECT * INTO v_queue FROM queen.queues WHERE id = p_queue FOR KEY SHARE SKIP LOCKED;
    v_old := clock_timestamp() - make_interval(secs => least(
        CASE WHEN v_queue.retention_enabled THEN nullif(v_queue.retention_s, 0) END, nullif(v_queue.ttl_s, 0)));
    v_spent := clock_timestamp() - make_interval(secs => CASE
        WHEN v_queue.retention_enabled THEN nullif(v_queue.completed_retention_s, 0) END);
    IF v_old IS NULL AND v_spent IS NULL THEN
        RETURN;
    END IF;
    FOR v_head IN
        SELECT * FROM queen.partition_lookup
        WHERE queue_id = p_queue AND partition_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
        ORDER BY partition_id LIMIT p_limit
    LOOP
        finished := false;
        IF deleted >= p_limit THEN
            RETURN;
        END IF;
        v_before := next;
        next := v_head.partition_id;
        seen := seen + 1;
        CONTINUE WHEN v_head.first_offset > v_head.last_offset;
        v_upto := 0;
        IF v_old IS NOT NULL THEN
            v_upto := queen.offset_before(v_head.partition_id, v_old);
        END IF;
        IF v_spent IS NOT NULL THEN
            v_upto := greatest(v_upto, least(queen.offset_before(v_head.partition_id, v_spent), coalesce(
                (SELECT min(position) FROM queen.partition_consumers WHERE partition_id = v_head.partition_id), 0)));
        END IF;
        IF v_queue.archive_before_delete THEN
            v_upto := least(v_upto, queen.archived_upto(p_queue, v_head.partition_id));
        END IF;
        v_more := v_upto >= v_head.first_offset + p_limit;
        v_upto := least(v_upto, v_head.first_offset + p_limit - 1);
        CONTINUE WHEN v_upto < v_head.first_offset;
        IF v_queue.ttl_s > 0 AND v_queue.dead_letter_queue THEN
            -- What a consumer holds just now becomes a dead letter only if it fails: left for a later sweep.
            v_upto := least(v_upto, queen.skip_free_groups(v_head.partition_id, v_upto, true, 'Message expired (ttl)'));
        END IF;
        CONTINUE WHEN NOT queen.groups_are_free(v_head.partition_id, v_upto);
        v_gone := queen.trim(v_head.partition_id, v_upto);
        deleted := deleted + v_gone;
        IF v_more AND v_gone > 0 THEN
            next := v_before;       -- the rest of it in the next step
            seen := seen - 1;
            RETURN;
        END IF;
    END LOOP;
    finished := seen < p_limit;
END $$;
