-- The position of a group in a partition, and what a pop would do there at p_now: without a row of the group in the partition, what it would do
-- after the subscription that comes first (from p_since on). Says the same as queen.pop does, and must be changed with it.
--   unread    stored and not finished; `expired` of them (ttl) and `doomed` (its attempts ended with the last lease) are never delivered
--   due       of the others, those that no delay or window keeps back; the first of them since due_since
--   ready     those of them that a pop gets now
--   next_…    the first message that is neither expired nor doomed, with the attempts that have failed; of those that are skipped only if there is
--             no other. retry_at is its time then, or the year 9999 if its partition is parked
-- Reads a message or two, and for a delay or ttl as many as a binary search does; locks nothing.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.describe_position(
    p_queue queen.queues, p_partition uuid, p_group text, p_since timestamptz, p_now timestamptz,
    OUT started boolean, OUT read_upto bigint, OUT first_offset bigint, OUT last_offset bigint, OUT last_message_at timestamptz,
    OUT ready_at timestamptz, OUT lease_id uuid, OUT lease_expires_at timestamptz, OUT leased bigint, OUT retry_at timestamptz,
    OUT last_consumed_at timestamptz, OUT total_consumed bigint,
    OUT unread bigint, OUT expired bigint, OUT due bigint, OUT ready bigint, OUT due_since timestamptz,
    OUT next_offset bigint, OUT next_transaction text, OUT next_created_at timestamptz, OUT attempts integer, OUT doomed text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    l        queen.partition_lookup;
    c        queen.partition_consumers;
    v_done   int8multirange := '{}';
    v_hidden int8multirange := '{}';    -- skipped
    v_rule   record;
    v_low    bigint;                    -- expired up to here
    v_high   bigint;                    -- due up to here
    v_poison bigint;                    -- what the expired lease was at
    v_shut   timestamptz;               -- when the window shuts
BEGIN
    SELECT * INTO l FROM queen.partition_lookup x WHERE x.partition_id = p_partition;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO c FROM queen.partition_consumers x WHERE x.partition_id = p_partition AND x.consumer_group = p_group;
    started := FOUND;
    first_offset := l.first_offset;
    last_offset := l.last_offset;
    last_message_at := l.last_message_at;
    leased := 0;
    total_consumed := 0;
    attempts := 0;
    IF started THEN
        read_upto := c.position;
        v_done := c.done;
        lease_id := c.lease_id;
        lease_expires_at := c.lease_expires_at;
        leased := queen.count_offsets(c.lease_offsets);
        retry_at := c.retry_at;
        ready_at := c.ready_at;
        last_consumed_at := c.last_consumed_at;
        total_consumed := c.total_consumed;
    ELSE
        read_upto := CASE WHEN p_since IS NULL THEN 0 ELSE queen.offset_before(p_partition, p_since) END;
    END IF;

    unread := queen.count_stored(l, read_upto, l.last_offset, v_done);
    expired := 0;
    due := 0;
    ready := 0;
    IF unread = 0 THEN
        RETURN;
    END IF;
    IF p_queue.dlq_after_max_retries AND c.lease_id IS NOT NULL AND c.lease_expires_at <= p_now AND NOT isempty(c.lease_offsets) THEN
        v_poison := lower(c.lease_offsets);
        IF p_queue.has_policies THEN
            v_rule := queen.retry_rule(p_queue, p_group);
        ELSE
            SELECT p_queue.retry_limit AS retry_limit, 'block' AS poison INTO v_rule;
        END IF;
        IF queen.failed_attempts(c, v_poison) >= v_rule.retry_limit AND v_rule.poison = 'park' THEN
            c.skipped := c.skipped || ('9999-12-31Z', int8multirange(int8range(v_poison, v_poison, '[]')), true)::queen.skipped;
        ELSIF queen.failed_attempts(c, v_poison) >= v_rule.retry_limit THEN
            v_done := v_done + int8multirange(int8range(v_poison, v_poison, '[]'));
            SELECT m.transaction_id INTO doomed FROM queen.messages m
            WHERE m.partition_id = p_partition AND m."offset" = v_poison;
        END IF;
    END IF;
    IF c.skipped IS NOT NULL THEN
        v_hidden := queen.kept_back(c.skipped, p_now);
    END IF;
    v_low := greatest(read_upto, l.first_offset - 1);
    IF p_queue.ttl_s > 0 THEN
        v_high := queen.offset_before(p_partition, p_now - make_interval(secs => p_queue.ttl_s), true);
        expired := queen.count_stored(l, v_low, v_high, v_done);
        v_low := greatest(v_low, v_high);
    END IF;
    SELECT m."offset", m.transaction_id, m.created_at INTO next_offset, next_transaction, next_created_at
    FROM queen.messages m
    WHERE m.partition_id = p_partition AND m."offset" > v_low AND NOT v_done @> m."offset" AND NOT v_hidden @> m."offset"
    ORDER BY m."offset" LIMIT 1;
    IF next_offset IS NULL AND c.skipped IS NOT NULL THEN
        SELECT m."offset", m.transaction_id, m.created_at, s.until INTO next_offset, next_transaction, next_created_at, retry_at
        FROM unnest(c.skipped) AS s
        CROSS JOIN LATERAL (
            SELECT m."offset", m.transaction_id, m.created_at FROM queen.messages m
            WHERE m.partition_id = p_partition AND s.offsets @> m."offset" AND m."offset" >= lower(s.offsets) AND m."offset" < upper(s.offsets)
              AND m."offset" > v_low AND NOT v_done @> m."offset"
            ORDER BY m."offset" LIMIT 1
        ) m
        -- What lies behind a parked message waits for that one, as in queen.skipped_until.
        ORDER BY m."offset" > min(m."offset") FILTER (WHERE s.parks) OVER (), s.until, m."offset" LIMIT 1;
    END IF;
    IF next_offset IS NULL THEN
        RETURN;
    END IF;
    attempts := CASE WHEN started THEN queen.failed_attempts(c, next_offset) ELSE 0 END
                + CASE WHEN doomed IS NULL AND next_offset = v_poison THEN 1 ELSE 0 END;

    v_high := l.last_offset;
    due_since := next_created_at;
    IF p_queue.delayed_processing_s > 0 THEN
        v_high := queen.offset_before(p_partition, p_now - make_interval(secs => p_queue.delayed_processing_s), true);
        due_since := due_since + make_interval(secs => p_queue.delayed_processing_s);
    END IF;
    IF p_queue.window_buffer_s > 0 THEN
        v_shut := l.last_message_at + make_interval(secs => p_queue.window_buffer_s);
        due_since := greatest(due_since, v_shut);
    END IF;
    IF NOT started THEN
        -- As queen.subscribe decides it, which does not check whether the first message has expired.
        SELECT greatest(m.created_at + make_interval(secs => p_queue.delayed_processing_s), v_shut) INTO ready_at
        FROM queen.messages m WHERE m.partition_id = p_partition AND m."offset" > read_upto ORDER BY m."offset" LIMIT 1;
    END IF;
    IF due_since > p_now THEN
        due_since := NULL;
        RETURN;
    END IF;
    due := queen.count_stored(l, v_low, v_high, v_done);
    IF ready_at <= p_now AND NOT ((p_queue.has_pauses OR p_queue.has_policies) AND queen.is_paused(p_queue.id, p_partition, p_group)) THEN
        ready := CASE WHEN c.skipped IS NULL THEN due ELSE queen.count_stored(l, v_low, v_high, v_done + v_hidden) END;
    END IF;
END $$;
