-- Give a group its rows in partitions of a queue in which it has none, where its subscription says that it starts. A partition that it has
-- waited for longest is served first, although the group is new.
-- The caller holds the queue's row FOR UPDATE. Locks: the group's floor (queen.reset_ready_floor); partitions by id; then heads that the group has
-- reached, without waiting.
CREATE OR REPLACE FUNCTION queen.place_group(p_queue queen.queues, p_group text, p_partitions uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_since timestamptz;
BEGIN
    SELECT since INTO v_since FROM queen.consumer_groups WHERE queue_name = p_queue.name AND name = p_group;
    PERFORM queen.reset_ready_floor(p_queue.id, p_group), set_config('queen.places', 'single', true);
    -- Written once, as they are to stay: a queue may have a hundred thousand partitions. Each is looked up on its own (LATERAL with LIMIT),
    -- because joins are quadratic if the statistics say that the tables are empty, as they were a minute ago.
    WITH place AS MATERIALIZED (
        SELECT p.id, p.name, CASE WHEN coalesce(s.since, v_since) IS NULL THEN 0
                          ELSE queen.offset_before(p.id, coalesce(s.since, v_since)) END AS position
        FROM (SELECT DISTINCT id FROM unnest(p_partitions) AS t (id) ORDER BY id) t
        CROSS JOIN LATERAL (
            -- A partition that is being dropped is waited for and passed over.
            SELECT x.id, x.name FROM queen.partitions x WHERE x.id = t.id LIMIT 1 FOR KEY SHARE
        ) p
        LEFT JOIN LATERAL (
            SELECT x.since FROM queen.partition_subscriptions x
            WHERE x.queue_name = p_queue.name AND x.partition_name = p.name AND x.name = p_group LIMIT 1
        ) s ON true
    ), held AS MATERIALIZED (
        -- Asleep only under the head's lock (see queen.settle).
        SELECT l.partition_id FROM place
        CROSS JOIN LATERAL (
            SELECT x.ctid AS version, x.last_offset FROM queen.partition_lookup x
            WHERE x.partition_id = place.id ORDER BY x.generation DESC LIMIT 1
        ) n
        JOIN queen.partition_lookup l ON l.ctid = n.version
        WHERE n.last_offset <= place.position
        FOR NO KEY UPDATE OF l SKIP LOCKED
    )
    INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, position, passed_over, fair_key, ready_at)
    SELECT place.id, p_group, p_queue.id, place.position,
           greatest(place.position, l.first_offset - 1) + l.holes, queen.fair_key(place.name, p_queue.fair_separator),
           -- IN and not a join: it is hashed, however few rows the planner expects.
           CASE WHEN place.id NOT IN (SELECT partition_id FROM held) THEN
               greatest(coalesce(n.created_at, clock_timestamp()),
                        CASE WHEN p_queue.delayed_processing_s > 0
                             THEN n.created_at + make_interval(secs => p_queue.delayed_processing_s) END,
                        CASE WHEN p_queue.window_buffer_s > 0
                             THEN l.last_message_at + make_interval(secs => p_queue.window_buffer_s) END) END
    FROM place
    CROSS JOIN LATERAL (
        SELECT x.* FROM queen.partition_lookup x WHERE x.partition_id = place.id ORDER BY x.generation DESC LIMIT 1
    ) l
    LEFT JOIN LATERAL (
        SELECT m.created_at FROM queen.messages m
        WHERE m.partition_id = place.id AND m."offset" > place.position
        ORDER BY m."offset" LIMIT 1
    ) n ON true
    -- LIMIT keeps the planner at one probe a partition.
    WHERE (SELECT true FROM queen.partition_consumers c
           WHERE c.partition_id = place.id AND c.consumer_group = p_group ORDER BY c.generation DESC LIMIT 1) IS NULL
    ORDER BY place.id;
    PERFORM set_config('queen.places', '', true);
    IF p_queue.max_wait_time_s > 0 THEN
        -- What everybody else has read is unread now (see queen.partition_ages).
        UPDATE queen.partition_ages a SET unread_at = a.oldest_at
        WHERE a.partition_id = ANY (p_partitions) AND a.unread_at > a.oldest_at;
    END IF;
END $$;
