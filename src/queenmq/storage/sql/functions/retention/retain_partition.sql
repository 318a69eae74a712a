-- Delete what retention asks for in one partition: what is older than p_old, or older than p_spent and read by every group (each if not
-- null; p_begun as in queen.read_by_all), up to about p_limit messages. Of a queue with archiveBeforeDelete only what is archived goes.
-- Returns how many were deleted, and whether there is more. What is old enough and has to stay is written down (kept_at). A partition that is
-- busy is left as it is, for the next run.
-- Locks: the partition's head, without waiting; rows of groups that are free (SKIP LOCKED); as queen.trim; the partition's row of
-- partition_ages.
CREATE OR REPLACE FUNCTION queen.retain_partition(
    p_queue queen.queues, p_age queen.partition_ages, p_old timestamptz, p_spent timestamptz, p_begun text[], p_limit integer,
    OUT deleted integer, OUT more boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_head  queen.partition_lookup;
    v_first timestamptz;
    v_old   bigint := 0;
    v_upto  bigint := 0;
BEGIN
    deleted := 0;
    more := false;
    SELECT * INTO v_head FROM queen.partition_lookup WHERE partition_id = p_age.partition_id;
    IF v_head.first_offset > v_head.last_offset THEN
        PERFORM 1 FROM queen.partition_lookup WHERE partition_id = p_age.partition_id FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM queen.note_age(p_age.partition_id);
        END IF;
        RETURN;
    END IF;
    IF p_old IS NOT NULL THEN
        v_old := queen.offset_before(p_age.partition_id, p_old);
    END IF;
    v_upto := v_old;
    IF p_spent IS NOT NULL THEN
        v_upto := greatest(v_old, least(queen.offset_before(p_age.partition_id, p_spent),
                                        queen.read_by_all(p_queue.name, p_age.partition_id, p_begun)));
    END IF;
    IF p_queue.archive_before_delete THEN
        v_upto := least(v_upto, queen.archived_upto(p_queue.id, p_age.partition_id));
    END IF;
    IF v_upto < v_head.first_offset THEN
        SELECT m.created_at INTO v_first FROM queen.messages m
        WHERE m.partition_id = p_age.partition_id AND m."offset" >= v_head.first_offset ORDER BY m."offset" LIMIT 1;
        v_first := coalesce(v_first, v_head.last_message_at);
        -- Not if somebody has changed it meanwhile, who knew better.
        UPDATE queen.partition_ages a
        SET oldest_at = v_first, kept_at = CASE WHEN v_first < greatest(p_old, p_spent) THEN clock_timestamp() END
        WHERE a.partition_id = p_age.partition_id AND a.oldest_at = p_age.oldest_at;
        RETURN;
    END IF;

    -- Who has dead letters delivered again holds the head: from here on no group comes back to what it has given up.
    SELECT * INTO v_head FROM queen.partition_lookup WHERE partition_id = p_age.partition_id FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND AND p_spent IS NOT NULL THEN
        v_upto := least(v_upto, greatest(v_old, queen.read_by_all(p_queue.name, p_age.partition_id, p_begun)));
    END IF;
    IF v_upto < v_head.first_offset IS NOT FALSE THEN
        RETURN;
    END IF;

    more := v_upto >= v_head.first_offset + p_limit;
    v_upto := least(v_upto, v_head.first_offset + p_limit - 1);
    IF p_queue.ttl_s > 0 AND p_queue.dead_letter_queue THEN
        -- What a consumer holds just now becomes a dead letter only if it fails: left for a later sweep.
        v_upto := least(v_upto, queen.skip_free_groups(p_age.partition_id, v_upto, true, 'Message expired (ttl)'));
    END IF;
    IF queen.groups_are_free(p_age.partition_id, v_upto) THEN
        deleted := queen.trim(p_age.partition_id, v_upto);
    END IF;
    more := more AND deleted > 0;
END $$;
