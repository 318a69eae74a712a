-- Subscribe a group at its first pop: remember where it starts, and give it a row in every partition (or in the one
-- named). The first subscription wins; repeating it changes nothing. Mode `new` starts now,
-- `timestamp` at p_since, `all` at the first stored message.
-- Locks: the queue's row FOR UPDATE, so that no partition is made meanwhile; then what queen.settle takes.
CREATE OR REPLACE FUNCTION queen.subscribe(
    p_queue text, p_partition text, p_group text, p_mode text, p_since timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue uuid;
    v_since timestamptz;
    v_rows  uuid[];
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

    SELECT id INTO v_queue FROM queen.queues WHERE name = p_queue FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_partition IS NULL THEN
        INSERT INTO queen.consumer_groups (queue_name, name, registered) VALUES (p_queue, p_group, true)
        ON CONFLICT (queue_name, name) DO UPDATE SET registered = true;
    END IF;
    SELECT since INTO v_since FROM queen.consumer_groups WHERE queue_name = p_queue AND name = p_group;

    WITH added AS (
        INSERT INTO queen.partition_consumers (partition_id, consumer_group, queue_id, position, ready_at)
        SELECT p.id, p_group, v_queue,
               CASE WHEN coalesce(s.since, v_since) IS NULL THEN 0
                    ELSE queen.offset_before(p.id, coalesce(s.since, v_since)) END,
               clock_timestamp()
        FROM (
            -- A partition that is being dropped is waited for and passed over.
            SELECT id, name FROM queen.partitions
            WHERE queue_id = v_queue AND (p_partition IS NULL OR name = p_partition)
            ORDER BY id FOR KEY SHARE
        ) p
        LEFT JOIN queen.partition_subscriptions s
               ON s.queue_name = p_queue AND s.partition_name = p.name AND s.name = p_group
        ORDER BY p.id
        ON CONFLICT (partition_id, consumer_group) DO NOTHING
        RETURNING partition_id
    )
    SELECT array_agg(partition_id) INTO v_rows FROM added;
    IF v_rows IS NULL THEN
        RETURN;
    END IF;
    PERFORM queen.settle(v_rows, array_fill(p_group, ARRAY[cardinality(v_rows)]), false);

    -- Whoever has waited longest is served first, although the group is new.
    UPDATE queen.partition_consumers c SET ready_at = n.created_at
    FROM unnest(v_rows) AS t (id)
    CROSS JOIN LATERAL (
        SELECT m.created_at FROM queen.partition_consumers u
        JOIN queen.messages m ON m.partition_id = u.partition_id AND m."offset" > u.position
        WHERE u.partition_id = t.id AND u.consumer_group = p_group
        ORDER BY m."offset" LIMIT 1
    ) n
    WHERE c.partition_id = t.id AND c.consumer_group = p_group
      AND c.ready_at <= clock_timestamp() AND n.created_at < c.ready_at;
END $$;
