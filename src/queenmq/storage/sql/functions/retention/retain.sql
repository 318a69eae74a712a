-- One bounded step of retention over a queue: delete what is too old (retentionSeconds, ttl) or old and read by every group
-- (completedRetentionSeconds), until about p_limit messages are gone or p_limit partitions are seen. It costs what it deletes: partitions with
-- nothing that is old enough are not read (queen.partition_ages).
-- First come those with something too old, then those with something that is old and perhaps read. Where it was not read, or not archived
-- although it must be, the partition is examined again in later runs, the longest kept first: p_limit of them in each run, and
-- more as long as something is found.
-- Returns how many messages were deleted, how many partitions were seen, and whether that was all or where to go on.
-- Locks: the queue FOR KEY SHARE (see queen.trim); heads that are free (SKIP LOCKED), one partition after the other; a busy one has its
-- turn in the next run.
CREATE OR REPLACE FUNCTION queen.retain(
    p_queue uuid, p_cursor jsonb, p_limit integer, OUT deleted integer, OUT seen integer, OUT cursor jsonb, OUT finished boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
    v_age   queen.partition_ages;
    v_old   timestamptz;
    v_spent timestamptz;
    v_begun text[];
    v_step  record;
    v_phase text := coalesce(p_cursor ->> 'phase', 'old');
    v_began timestamptz := coalesce((p_cursor ->> 'began')::timestamptz, clock_timestamp());
    v_at    timestamptz := coalesce((p_cursor ->> 'at')::timestamptz, '-infinity');
    v_after uuid := coalesce((p_cursor ->> 'after')::uuid, '00000000-0000-0000-0000-000000000000');
BEGIN
    deleted := 0;
    seen := 0;
    finished := true;
    SELECT * INTO v_queue FROM queen.queues WHERE id = p_queue FOR KEY SHARE SKIP LOCKED;
    v_old := clock_timestamp() - make_interval(secs => least(
        CASE WHEN v_queue.retention_enabled THEN nullif(v_queue.retention_s, 0) END, nullif(v_queue.ttl_s, 0)));
    v_spent := clock_timestamp() - make_interval(secs => CASE
        WHEN v_queue.retention_enabled THEN nullif(v_queue.completed_retention_s, 0) END);
    -- A group that is being given its places has not read what is in partitions where it has none yet.
    IF EXISTS (
        SELECT 1 FROM queen.consumer_groups g
        WHERE g.queue_name = v_queue.name AND g.placed_upto IS NOT NULL AND NOT g.registered
    ) THEN
        v_spent := NULL;
    END IF;
    IF v_old IS NULL AND v_spent IS NULL THEN
        RETURN;
    END IF;
    IF v_phase = 'old' AND (v_old IS NULL OR v_queue.archive_before_delete) THEN
        v_phase := 'spent';     -- what is not archived is kept, too
    END IF;

    WHILE seen < p_limit AND deleted < p_limit LOOP
        -- One at a time, because each changes what is left.
        IF v_phase = 'old' THEN
            SELECT * INTO v_age FROM queen.partition_ages a
            WHERE a.queue_id = p_queue AND a.oldest_at < v_old AND (a.oldest_at, a.partition_id) > (v_at, v_after)
            ORDER BY a.oldest_at, a.partition_id LIMIT 1;
        ELSIF v_phase = 'spent' THEN
            SELECT * INTO v_age FROM queen.partition_ages a
            WHERE a.queue_id = p_queue AND a.oldest_at < greatest(v_old, v_spent) AND a.kept_at IS NULL
              AND (a.oldest_at, a.partition_id) > (v_at, v_after)
            ORDER BY a.oldest_at, a.partition_id LIMIT 1;
        ELSE
            SELECT * INTO v_age FROM queen.partition_ages a
            WHERE a.queue_id = p_queue AND a.kept_at < v_began ORDER BY a.kept_at LIMIT 1;
        END IF;
        IF NOT FOUND THEN
            EXIT WHEN v_phase = 'kept' OR (v_spent IS NULL AND NOT v_queue.archive_before_delete);
            v_phase := CASE v_phase WHEN 'old' THEN 'spent' ELSE 'kept' END;
            v_at := '-infinity';
            v_after := '00000000-0000-0000-0000-000000000000';
            CONTINUE;
        END IF;
        IF v_spent IS NOT NULL AND v_begun IS NULL THEN
            v_begun := ARRAY(SELECT g.name FROM queen.groups_of(v_queue.name, NULL) g WHERE g.started AND NOT g.registered);
        END IF;
        v_step := queen.retain_partition(v_queue, v_age, v_old, v_spent, v_begun, p_limit - deleted);
        deleted := deleted + v_step.deleted;
        IF NOT v_step.more THEN
            seen := seen + 1;
        END IF;
        IF v_phase = 'kept' AND v_step.more THEN
            v_phase := 'spent';     -- the rest of it is not kept any more
        ELSIF v_phase = 'kept' THEN
            -- Also one that is busy has had its turn.
            UPDATE queen.partition_ages a SET kept_at = clock_timestamp()
            WHERE a.partition_id = v_age.partition_id AND a.kept_at < v_began;
        ELSIF NOT v_step.more THEN
            v_at := v_age.oldest_at;
            v_after := v_age.partition_id;
        END IF;
    END LOOP;
    finished := seen < p_limit AND deleted < p_limit OR (v_phase = 'kept' AND deleted = 0);
    cursor := jsonb_build_object('phase', v_phase, 'began', v_began, 'at', v_at, 'after', v_after);
END $$;
