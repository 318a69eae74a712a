-- Subscribe a group at its first pop: remember where it starts, and give it a row in every partition (or in the one
-- named). The first subscription wins; repeating it changes nothing. Mode `new` starts now,
-- `timestamp` at p_since, `all` at the first stored message.
-- Locks: the queue's row FOR UPDATE, so that no partition is made meanwhile; partitions by
-- id; then heads that the group has reached, without waiting.
CREATE OR REPLACE FUNCTION queen.subscribe(
    p_queue text, p_partition text, p_group text, p_mode text, p_since timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
    v_since timestamptz;
BEGIN
    IF (p_mode = 'new' AND p_since IS NULL) OR p_since > clock_timestamp() THEN
        p_since := clock_timestamp();       -- a client whose clock is ahead means now, too
    END IF;
    IF p_since IS NOT NULL AND p_partition IS NULL THEN
        INSERT INTO queen.consumer_groups (queue_name, name, mode, since) VALUES (p_queue, p_group, p_mode, p_since)
        ON CONFLICT (queue_name, name) DO NOTHING;
    ELSIF p_since IS NOT NULL THEN
        INSERT INTO queen.partition_subscriptions (queue_name, partition_name, name, mode, since)
        SELECT p_queue, p_partition, p_group, p_mode, p_since
        WHERE NOT EXISTS (SELECT 1 FROM queen.consumer_groups g WHERE g.queue_name = p_queue AND g.name = p_group)
        ON CONFLICT (queue_name, partition_name, name) DO NOTHING;
    END IF;

    SELECT * INTO v_queue FROM queen.queues WHERE name = p_queue FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_partition IS NULL THEN
        INSERT INTO queen.consumer_groups (queue_name, name, registered) VALUES (p_queue, p_group, true)
        ON CONFLICT (queue_name, name) DO UPDATE SET registered = true;
    END IF;
    SELECT since INTO v_since FROM queen.consumer_groups WHERE queue_name = p_queue AND name = p_group;

    -- Written once, as they are to stay: a queue may have a hundred thousand partitions. The partition that has waited
    -- longest is served first, although the group is new.
    WITH place AS MATERIALIZED (
        SELECT p.id, CASE WHEN coalesce(s.since, v_since) IS NULL THEN 0
                          ELSE queen.offset_before(p.id, coalesce(s.since, v_since)) END AS position
        FROM (
            -- A partition that is being dropped is waited for and passed over.
            SELECT id, name FROM queen.partitions
            WHERE queue_id = v_queue.id AND (p_partition IS NULL OR name = p_partition)
            ORDER BY id FOR KEY SHARE
        ) p
        LEFT JOIN queen.partition_subscriptions s
               ON s.queue_name = p_queue AND s.partition_name = p.name AND s.name = p_group
    ), held AS MATERIALIZED (
        -- Asleep only under the head's lock (see queen.settle).
        SELECT l.partition_id FROM place JOIN queen.partition_lookup l ON l.partition_id = place.id
        WHERE l.last_offset <= place.position
        FOR NO KEY UPDATE OF l SKIP LOCKED
    )
    INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, position, passed_over, ready_at)
    SELECT place.id, p_group, v_queue.id, place.position,
           greatest(place.position, l.first_offset - 1) + l.holes,
           -- IN and not a join: it is hashed, however few rows the planner expects.
           CASE WHEN place.id NOT IN (SELECT partition_id FROM held) THEN
               greatest(coalesce(n.created_at, clock_timestamp()),
                        CASE WHEN v_queue.delayed_processing_s > 0
                             THEN n.created_at + make_interval(secs => v_queue.delayed_processing_s) END,
                        CASE WHEN v_queue.window_buffer_s > 0
                             THEN l.last_message_at + make_interval(secs => v_queue.window_buffer_s) END) END
    FROM place
    JOIN queen.partition_lookup l ON l.partition_id = place.id
    LEFT JOIN LATERAL (
        SELECT m.created_at FROM queen.messages m
        WHERE m.partition_id = place.id AND m."offset" > place.position
        ORDER BY m."offset" LIMIT 1
    ) n ON true
    ORDER BY place.id
    ON CONFLICT (partition_id, consumer_group) DO NOTHING;
    IF v_queue.max_wait_time_s > 0 THEN
        -- What everybody else has read is unread now (see queen.partition_ages).
        UPDATE queen.partition_ages a SET unread_at = a.oldest_at
        WHERE a.queue_id = v_queue.id AND a.unread_at > a.oldest_at
          AND (p_partition IS NULL OR a.partition_id = (
              SELECT p.id FROM queen.partitions p WHERE p.queue_id = v_queue.id AND p.name = p_partition));
    END IF;
    IF v_queue.max_size > 0 THEN
        -- It may begin before the slowest of the other groups. A whole queue is counted again; of one partition it is known.
        IF p_partition IS NULL THEN
            INSERT INTO queen.queue_size_changes (queue_id)
            SELECT v_queue.id WHERE EXISTS (
                SELECT 1 FROM queen.partition_consumers c WHERE c.queue_id = v_queue.id AND c.consumer_group <> p_group);
        ELSE
            INSERT INTO queen.queue_size_changes (queue_id, added)
            SELECT v_queue.id, min(o.position) - min(c.position)
            FROM queen.partitions p
            JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
            JOIN queen.partition_consumers o ON o.partition_id = p.id AND o.consumer_group <> p_group
            WHERE p.queue_id = v_queue.id AND p.name = p_partition
            HAVING min(c.position) < min(o.position);
        END IF;
    END IF;
END $$;
