-- One bounded step of eviction over a queue with maxWaitTimeSeconds: messages that waited longer and that some group
-- has not finished are taken out of delivery and deleted with what lies before them (to the dead letters first, if the queue
-- asks for it). Of a queue with archiveBeforeDelete only what is archived is deleted.
-- Returns how many were deleted and where to go on; next is null at the end. A partition whose group is at work on the
-- messages is left for a later sweep. Locks: the queue FOR KEY SHARE (see queen.trim); as queen.skip_free_groups and queen.trim, one partition after the other.
CREATE OR REPLACE FUNCTION queen.evict(p_queue uuid, p_after uuid, p_limit integer, OUT deleted integer, OUT next uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue  queen.queues;
    v_head   queen.partition_lookup;
    v_seen   integer := 0;
    v_before timestamptz;
    v_read   bigint;
    v_upto   bigint;
BEGIN
    deleted := 0;
    SELECT * INTO v_queue FROM queen.queues WHERE id = p_queue AND max_wait_time_s > 0 FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_before := clock_timestamp() - make_interval(secs => v_queue.max_wait_time_s);
    FOR v_head IN
        SELECT * FROM queen.partition_lookup
        WHERE queue_id = p_queue AND partition_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
        ORDER BY partition_id LIMIT p_limit
    LOOP
        v_seen := v_seen + 1;
        IF deleted >= p_limit THEN
            RETURN;
        END IF;
        next := v_head.partition_id;
        CONTINUE WHEN v_head.first_offset > v_head.last_offset;
        SELECT greatest(coalesce(min(position), 0), v_head.first_offset - 1) INTO v_read
        FROM queen.partition_consumers WHERE partition_id = v_head.partition_id;
        v_upto := queen.offset_before(v_head.partition_id, v_before, true);
        CONTINUE WHEN v_upto <= v_read;
        v_upto := least(v_upto, v_head.first_offset + p_limit - 1);
        v_upto := least(v_upto, queen.skip_free_groups(v_head.partition_id, v_upto, v_queue.dead_letter_queue,
                                                       'Message waited longer than maxWaitTimeSeconds'));
        IF v_queue.archive_before_delete THEN
            v_upto := least(v_upto, queen.archived_upto(p_queue, v_head.partition_id));
        END IF;
        CONTINUE WHEN v_upto < v_head.first_offset OR NOT queen.groups_are_free(v_head.partition_id, v_upto);
        deleted := deleted + queen.trim(v_head.partition_id, v_upto);
    END LOOP;
    IF v_seen < p_limit THEN
        next := NULL;
    END IF;
END $$;
