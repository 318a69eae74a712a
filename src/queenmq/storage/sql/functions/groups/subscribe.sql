-- Subscribe a group at its first pop: remember where it starts, and give it a row in every partition (or in the one
-- named). The first subscription wins; repeating it changes nothing. Mode `new` starts now,
-- `timestamp` at p_since, `all` at the first stored message.
-- With p_limit only about so many rows are made, first where a pop is most likely to find something; then it returns false, and is to be
-- called again until it returns true. Meanwhile the group reads where it has rows; partitions that are made get theirs at once.
-- With p_only_goes_on nothing is done for a group that is not being given its rows: it may have been deleted since the last step.
-- Locks: the queue's row FOR UPDATE, so that no partition is made meanwhile; then as queen.place_group.
CREATE OR REPLACE FUNCTION queen.subscribe(
    p_queue text, p_partition text, p_group text, p_mode text, p_since timestamptz, p_limit integer DEFAULT NULL,
    p_only_goes_on boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_queue queen.queues;
    v_group queen.consumer_groups;
    v_ids   uuid[];
    v_page  uuid[];
    v_upto  uuid;
    v_done  boolean := true;
BEGIN
    IF (p_mode = 'new' AND p_since IS NULL) OR p_since > clock_timestamp() THEN
        p_since := clock_timestamp();       -- a client whose clock is ahead means now, too
    END IF;
    IF p_only_goes_on THEN
        p_since := NULL;        -- it is written down
    ELSIF p_since IS NOT NULL AND p_partition IS NULL THEN
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
        RETURN true;
    END IF;
    IF p_partition IS NOT NULL THEN
        v_ids := ARRAY(SELECT id FROM queen.partitions WHERE queue_id = v_queue.id AND name = p_partition);
    ELSE
        IF NOT p_only_goes_on THEN
            INSERT INTO queen.consumer_groups (queue_name, name) VALUES (p_queue, p_group) ON CONFLICT (queue_name, name) DO NOTHING;
        END IF;
        SELECT * INTO v_group FROM queen.consumer_groups WHERE queue_name = p_queue AND name = p_group;
        IF v_group.registered AND v_group.placed_upto IS NOT NULL THEN
            -- A server of an earlier version, which knows nothing of steps, has made the rest of its rows.
            UPDATE queen.consumer_groups SET placed_upto = NULL WHERE queue_name = p_queue AND name = p_group;
        END IF;
        IF v_group.registered OR (p_only_goes_on AND v_group.placed_upto IS NULL) THEN
            RETURN true;
        END IF;
        v_upto := coalesce(v_group.placed_upto, '00000000-0000-0000-0000-000000000000');
        v_page := ARRAY(
            SELECT l.partition_id FROM queen.partition_lookup l
            WHERE l.queue_id = v_queue.id AND l.partition_id > v_upto ORDER BY l.partition_id LIMIT p_limit);
        v_done := cardinality(v_page) < p_limit IS NOT FALSE;
        v_ids := v_page;
        IF v_group.placed_upto IS NULL AND NOT v_done THEN
            -- What has waited longest is served first, although the group is new; who starts late may find something in what was written last.
            v_ids := ARRAY(
                SELECT t.id FROM unnest(v_page) AS t (id)
                UNION (SELECT a.partition_id FROM queen.partition_ages a WHERE a.queue_id = v_queue.id AND a.oldest_at IS NOT NULL
                       ORDER BY a.oldest_at, a.partition_id LIMIT p_limit)
                UNION SELECT r.partition_id FROM queen.recent_partitions r WHERE r.queue_id = v_queue.id);
        END IF;
        UPDATE queen.consumer_groups
        SET registered = v_done, placed_upto = CASE WHEN NOT v_done THEN v_page[cardinality(v_page)] END
        WHERE queue_name = p_queue AND name = p_group;
    END IF;
    PERFORM queen.place_group(v_queue, p_group, v_ids);

    IF v_queue.max_size > 0 THEN
        -- It may begin before the slowest of the other groups. A whole queue is counted again; of one partition it is known.
        IF p_partition IS NULL THEN
            INSERT INTO queen.queue_size_changes (queue_id)
            SELECT v_queue.id WHERE (v_done OR v_group.placed_upto IS NULL) AND EXISTS (
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
    RETURN v_done;
END $$;
