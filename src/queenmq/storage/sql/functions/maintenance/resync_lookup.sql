-- Rebuild partition_lookup for up to p_limit partitions after p_after from the messages, and wake groups that sleep over
-- something unread. Idempotent; may run while servers push and pop. Returns the rows changed, and where to go on
-- (null at the end). Offsets never go back: what a group has passed or a dead letter names counts as given out.
-- Locks: partitions by id; rows of partition_lookup by partition, then rows of partition_ages, then rows of partition_consumers by (partition,
-- group).
CREATE OR REPLACE FUNCTION queen.resync_lookup(p_after uuid, p_limit integer, OUT changed integer, OUT next uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_partitions uuid[];
    v_asleep     uuid[];
    v_groups     text[];
BEGIN
    SELECT array_agg(x.id ORDER BY x.id) INTO v_partitions FROM (
        SELECT id FROM queen.partitions
        WHERE id > coalesce(p_after, '00000000-0000-0000-0000-000000000000') ORDER BY id LIMIT p_limit
    ) x;
    changed := 0;
    IF v_partitions IS NULL THEN
        RETURN;
    END IF;
    -- Two of these at once must not both find that there is none.
    PERFORM 1 FROM queen.partitions WHERE id = ANY (v_partitions) ORDER BY id FOR NO KEY UPDATE;
    INSERT INTO queen.partition_lookup (partition_id, queue_id)
    SELECT p.id, p.queue_id FROM queen.partitions p
    WHERE p.id = ANY (v_partitions) AND NOT EXISTS (SELECT 1 FROM queen.partition_lookup l WHERE l.partition_id = p.id)
    ORDER BY p.id;
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_partitions)
    ORDER BY partition_id FOR NO KEY UPDATE;

    WITH truth AS (
        SELECT l.partition_id,
               greatest(newest."offset", passed.position, buried."offset", l.last_offset) AS last_offset,
               coalesce(oldest."offset",
                        greatest(newest."offset", passed.position, buried."offset", l.last_offset) + 1) AS first_offset,
               coalesce(newest.id, l.last_message_id) AS last_message_id,
               coalesce(newest.created_at, l.last_message_at) AS last_message_at
        FROM queen.partition_lookup l
        LEFT JOIN LATERAL (
            SELECT m."offset", m.id, m.created_at FROM queen.messages m
            WHERE m.partition_id = l.partition_id ORDER BY m."offset" DESC LIMIT 1
        ) newest ON true
        LEFT JOIN LATERAL (
            SELECT m."offset" FROM queen.messages m WHERE m.partition_id = l.partition_id ORDER BY m."offset" LIMIT 1
        ) oldest ON true
        LEFT JOIN LATERAL (
            SELECT max(c.position) AS position FROM queen.partition_consumers c WHERE c.partition_id = l.partition_id
        ) passed ON true
        LEFT JOIN LATERAL (
            SELECT max(d."offset") AS "offset" FROM queen.dead_letter_queue d WHERE d.partition_id = l.partition_id
        ) buried ON true
        WHERE l.partition_id = ANY (v_partitions)
    )
    UPDATE queen.partition_lookup l
    SET last_offset = t.last_offset, first_offset = t.first_offset,
        last_message_id = t.last_message_id, last_message_at = t.last_message_at, generation = t.last_offset / 16
    FROM truth t
    WHERE l.partition_id = t.partition_id
      AND (l.last_offset, l.first_offset, l.last_message_id, l.last_message_at)
          IS DISTINCT FROM (t.last_offset, t.first_offset, t.last_message_id, t.last_message_at);
    GET DIAGNOSTICS changed = ROW_COUNT;
    INSERT INTO queen.partition_ages AS a (partition_id, queue_id, idle_since)
    SELECT p.id, p.queue_id, p.created_at FROM queen.partitions p WHERE p.id = ANY (v_partitions) ORDER BY p.id
    ON CONFLICT (partition_id) DO UPDATE SET unread_at = NULL;
    PERFORM queen.note_age(t.id) FROM unnest(v_partitions) AS t (id);
    IF changed > 0 THEN
        INSERT INTO queen.queue_size_changes (queue_id)
        SELECT DISTINCT q.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id AND q.max_size > 0
        WHERE p.id = ANY (v_partitions);
    END IF;

    SELECT array_agg(x.partition_id), array_agg(x.consumer_group) INTO v_asleep, v_groups FROM (
        SELECT c.partition_id, c.consumer_group FROM queen.partition_consumers c
        JOIN queen.partition_lookup l ON l.partition_id = c.partition_id AND l.last_offset > c.position
        WHERE c.partition_id = ANY (v_partitions) AND c.ready_at IS NULL
        ORDER BY c.partition_id, c.consumer_group FOR NO KEY UPDATE OF c
    ) x;
    IF v_asleep IS NOT NULL THEN
        PERFORM queen.settle(v_asleep, v_groups, true);
    END IF;
    IF cardinality(v_partitions) = p_limit THEN
        next := v_partitions[p_limit];
    END IF;
END $$;
