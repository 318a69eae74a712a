-- One bounded step of eviction over a queue with maxWaitTimeSeconds: messages that waited longer and that some group
-- has not finished are taken out of delivery and deleted with what lies before them (to the dead letters first, if the queue
-- asks for it). Of a queue with archiveBeforeDelete only what is archived is deleted.
-- Partitions without such a message are not read (queen.partition_ages).
-- Returns how many were deleted and where to go on; next is null at the end. A partition whose group is at work on the
-- messages is left for a later sweep. Locks: the queue FOR KEY SHARE (see queen.trim); as queen.skip_free_groups, queen.trim and
-- queen.note_unread, one partition after the other.
CREATE OR REPLACE FUNCTION queen.evict(
    p_queue uuid, p_since timestamptz, p_after uuid, p_limit integer, OUT deleted integer, OUT since timestamptz, OUT next uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue  queen.queues;
    v_age    queen.partition_ages;
    v_head   queen.partition_lookup;
    v_seen   integer := 0;
    v_before timestamptz;
    v_read   bigint;
    v_upto   bigint;
BEGIN
    deleted := 0;
    since := coalesce(p_since, '-infinity');
    next := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
    SELECT * INTO v_queue FROM queen.queues WHERE id = p_queue AND max_wait_time_s > 0 FOR KEY SHARE SKIP LOCKED;
    v_before := clock_timestamp() - make_interval(secs => v_queue.max_wait_time_s);
    WHILE v_seen < p_limit AND deleted < p_limit LOOP
        SELECT * INTO v_age FROM queen.partition_ages a
        WHERE a.queue_id = p_queue AND a.unread_at <= v_before AND (a.unread_at, a.partition_id) > (since, next)
        ORDER BY a.unread_at, a.partition_id LIMIT 1;
        IF NOT FOUND THEN
            since := NULL;
            next := NULL;
            RETURN;
        END IF;
        v_seen := v_seen + 1;
        since := v_age.unread_at;
        next := v_age.partition_id;
        SELECT * INTO v_head FROM queen.partition_lookup WHERE partition_id = v_age.partition_id;
        SELECT greatest(coalesce(min(position), 0), v_head.first_offset - 1) INTO v_read
        FROM queen.partition_consumers WHERE partition_id = v_head.partition_id;
        v_upto := queen.offset_before(v_head.partition_id, v_before, true);
        IF v_upto <= v_read THEN
            PERFORM queen.note_unread(v_head.partition_id, v_age.unread_at);
            CONTINUE;
        END IF;
        v_upto := least(v_upto, v_head.first_offset + p_limit - 1);
        v_upto := least(v_upto, queen.skip_free_groups(v_head.partition_id, v_upto, v_queue.dead_letter_queue,
                                                       'Message waited longer than maxWaitTimeSeconds'));
        IF v_queue.archive_before_delete THEN
            v_upto := least(v_upto, queen.archived_upto(p_queue, v_head.partition_id));
        END IF;
        CONTINUE WHEN v_upto < v_head.first_offset OR NOT queen.groups_are_free(v_head.partition_id, v_upto);
        deleted := deleted + queen.trim(v_head.partition_id, v_upto);
    END LOOP;
END $$;
