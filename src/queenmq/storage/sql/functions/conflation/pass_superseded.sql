-- Let a group that conflates pass over all messages of a partition that it will not get because there is a newer one that it gets now. They count
-- as finished, and in queen.filtered. With a filter (all null: none), messages are examined from the end of the partition until it lets one through,
-- or until p_until; what it does not let through there is passed over, too.
-- Returns the offset of the newest, or (fitting 0) any before which nothing is to be delivered now.
-- The caller holds the row, which is not under a live lease. Locks: the count of the partition and group.
CREATE OR REPLACE FUNCTION queen.pass_superseded(
    p_partition uuid, p_group text, p_filter queen.group_filters, p_delay_s integer, p_until timestamptz,
    OUT examined bigint, OUT fitting integer)
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_row    queen.partition_consumers;
    v_hidden int8multirange;
    v_end    bigint := 9223372036854775806;     -- what lies behind it is not due, or was examined
    v_limit  integer;
    v_count  integer;
    v_first  bigint;
    v_newest bigint;
    v_some   int8multirange;
    v_unfit  int8multirange := '{}';
    v_older  int8multirange := '{}';
    v_done   int8multirange;
BEGIN
    SELECT * INTO v_row FROM queen.partition_consumers c
    WHERE c.partition_id = p_partition AND c.consumer_group = p_group ORDER BY c.generation DESC LIMIT 1;
    v_hidden := CASE WHEN v_row.skipped IS NULL THEN v_row.done
                     ELSE v_row.done + queen.kept_back(v_row.skipped, clock_timestamp()) END;
    IF p_delay_s > 0 THEN
        v_end := queen.offset_before(p_partition, clock_timestamp() - make_interval(secs => p_delay_s), true);
    END IF;
    LOOP
        -- When the time is over, one message at least, so that every call gets on.
        v_limit := CASE WHEN p_filter.queue_id IS NOT NULL AND clock_timestamp() < p_until THEN 50 ELSE 1 END;
        SELECT count(*), min(x."offset"), max(x."offset") FILTER (WHERE x.fits),
               range_agg(int8range(x."offset", x."offset", '[]')) FILTER (WHERE NOT x.fits)
        INTO v_count, v_first, v_newest, v_some
        FROM (
            SELECT m."offset", p_filter.queue_id IS NULL OR queen.matches(p_filter, m.headers, m.is_encrypted, m.payload) AS fits
            FROM (
                SELECT m.* FROM queen.messages m
                WHERE m.partition_id = p_partition AND m."offset" > v_row.position AND m."offset" <= v_end AND NOT v_hidden @> m."offset"
                ORDER BY m."offset" DESC LIMIT v_limit
            ) m
        ) x;
        v_unfit := v_unfit + coalesce(v_some * int8multirange(int8range(v_newest, NULL)), '{}');
        EXIT WHEN v_newest IS NOT NULL OR v_count < v_limit OR clock_timestamp() >= p_until;
        v_end := v_first - 1;
    END LOOP;
    examined := coalesce(v_newest, v_row.position);
    fitting := CASE WHEN v_newest IS NULL THEN 0 ELSE 1 END;
    IF v_newest IS NOT NULL THEN
        v_older := int8multirange(int8range(v_row.position + 1, v_newest)) - v_row.done;
    END IF;
    IF isempty(v_older) AND isempty(v_unfit) THEN
        RETURN;
    END IF;
    v_done := v_row.done + v_older + v_unfit;
    -- What was deleted before was counted then (see queen.pass_over).
    v_older := v_older * int8multirange(int8range((
                   SELECT l.first_offset FROM queen.partition_lookup l WHERE l.partition_id = p_partition ORDER BY l.generation DESC LIMIT 1), NULL))
               - queen.deleted_within(p_partition, lower(v_older), upper(v_older) - 1);
    UPDATE queen.partition_consumers c
    SET position = queen.end_of_done(v_done, c.position),
        done = v_done * int8multirange(int8range(queen.end_of_done(v_done, c.position) + 1, NULL)),
        passed_over = c.passed_over + queen.count_offsets(v_older + v_unfit),
        lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, generation = c.generation + 1
    WHERE c.partition_id = p_partition AND c.consumer_group = p_group;
    IF v_row.failures IS NOT NULL OR v_row.skipped IS NOT NULL THEN
        PERFORM queen.forget_failures(p_partition, ARRAY[p_group], v_older + v_unfit, true);
    END IF;
    INSERT INTO queen.filtered AS f (partition_id, consumer_group, queue_id, messages, conflated)
    VALUES (p_partition, p_group, v_row.queue_id, queen.count_offsets(v_unfit), queen.count_offsets(v_older))
    ON CONFLICT (partition_id, consumer_group) DO UPDATE
    SET messages = f.messages + excluded.messages, conflated = f.conflated + excluded.conflated;
END $$;
