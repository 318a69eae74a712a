-- Let a group pass over the messages of a partition that its filter does not let through, from its position on until p_wanted messages
-- that it gets were found, or p_until. They count as finished, and in queen.filtered.
-- Returns the offset up to which messages were examined: what lies behind it must not be delivered yet; and how many of them the group gets.
-- The caller holds the row, which is not under a live lease. Locks: the count of the partition and group.
CREATE OR REPLACE FUNCTION queen.pass_unmatched(
    p_partition uuid, p_group text, p_filter queen.group_filters, p_wanted integer, p_until timestamptz,
    OUT examined bigint, OUT fitting integer)
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_row    queen.partition_consumers;
    v_others int8multirange := '{}';
    v_hidden int8multirange;
    v_limit  integer;
    v_some   int8multirange;
    v_done   int8multirange;
    v_count  integer;
    v_fits   integer;
    v_last   bigint;
BEGIN
    SELECT * INTO v_row FROM queen.partition_consumers c
    WHERE c.partition_id = p_partition AND c.consumer_group = p_group ORDER BY c.generation DESC LIMIT 1;
    fitting := 0;
    v_hidden := CASE WHEN v_row.skipped IS NULL THEN v_row.done
                     ELSE v_row.done + queen.kept_back(v_row.skipped, clock_timestamp()) END;
    examined := queen.end_of_done(v_hidden, v_row.position);
    LOOP
        -- When the time is over, one message at least, so that every call gets on.
        v_limit := CASE WHEN clock_timestamp() < p_until THEN 50 ELSE 1 END;
        SELECT count(*), count(*) FILTER (WHERE x.fits), max(x."offset"),
               range_agg(int8range(x."offset", x."offset", '[]')) FILTER (WHERE NOT x.fits)
        INTO v_count, v_fits, v_last, v_some
        FROM (
            SELECT m."offset", queen.matches(p_filter, m.headers, m.is_encrypted, m.payload) AS fits
            FROM (
                SELECT m.* FROM queen.messages m
                WHERE m.partition_id = p_partition AND m."offset" > examined AND NOT v_hidden @> m."offset"
                ORDER BY m."offset" LIMIT v_limit
            ) m
        ) x;
        examined := coalesce(v_last, examined);
        fitting := fitting + v_fits;
        v_others := v_others + coalesce(v_some, '{}');
        EXIT WHEN v_count < v_limit OR fitting >= p_wanted OR clock_timestamp() >= p_until;
    END LOOP;
    IF isempty(v_others) THEN
        RETURN;
    END IF;
    v_done := v_row.done + v_others;
    UPDATE queen.partition_consumers c
    SET position = queen.end_of_done(v_done, c.position),
        done = v_done * int8multirange(int8range(queen.end_of_done(v_done, c.position) + 1, NULL)),
        passed_over = c.passed_over + queen.count_offsets(v_others),
        lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, generation = c.generation + 1
    WHERE c.partition_id = p_partition AND c.consumer_group = p_group;
    IF v_row.failures IS NOT NULL THEN
        PERFORM queen.forget_failures(p_partition, ARRAY[p_group], v_others);
    END IF;
    INSERT INTO queen.filtered AS f (partition_id, consumer_group, queue_id, messages)
    VALUES (p_partition, p_group, v_row.queue_id, queen.count_offsets(v_others))
    ON CONFLICT (partition_id, consumer_group) DO UPDATE SET messages = f.messages + excluded.messages;
END $$;
