-- Move several chunks in one transaction, in the order in which they are given. With p_bounded it is refused if a queue with maxSize has no room for
-- all that would be written: QN004 with the queues' names (queen.free_room, as for a push).
-- Locks: as queen.move_chunk, with those of the trigger; the locks of all chunks are taken before the first is moved, each kind in its order, which
-- the inserts of one chunk after the other would not keep.
CREATE OR REPLACE FUNCTION queen.move_chunks(
    p_attempts bigint[], p_places bigint[], p_bounded boolean, OUT written bigint, OUT duplicates bigint)
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_queues     text[];
    v_partitions text[];
    v_targets    record;
    v_limited    uuid[];
    v_waits      boolean;
    v_sizes      bigint[];
    v_full       text[];
    v_moved      record;
BEGIN
    IF p_bounded OR cardinality(p_places) > 1 THEN
        SELECT array_agg(t.queue), array_agg(t.partition) INTO v_queues, v_partitions
        FROM (
            SELECT DISTINCT n.queue, n.partition
            FROM unnest(p_attempts, p_places) AS k (attempt, place)
            JOIN queen.pipeline_chunks c ON c.attempt = k.attempt AND c.place = k.place
            CROSS JOIN LATERAL unnest(c.queues, c.partitions) AS n (queue, partition)
        ) t;
        PERFORM 1 FROM queen.queues WHERE name = ANY (v_queues) ORDER BY name FOR KEY SHARE;
        v_targets := queen.lock_targets(v_queues, v_partitions, NULL, true);
        v_limited := v_targets.limited;
        -- What the trigger on messages locks: the groups that sleep, then the ages that it changes. As the heads are held, no group falls asleep and
        -- no partition becomes empty meanwhile.
        PERFORM 1
        FROM (
            SELECT u.id, u.base FROM unnest(v_targets.partition_ids, v_targets.last_offsets) AS u (id, base) ORDER BY u.id
        ) t
        CROSS JOIN LATERAL (
            SELECT true FROM queen.partition_consumers s
            WHERE s.partition_id = t.id AND s.position >= t.base AND s.ready_at IS NULL
            ORDER BY s.position, s.consumer_group FOR NO KEY UPDATE
        ) c;
        v_waits := EXISTS (SELECT 1 FROM queen.queues WHERE max_wait_time_s > 0);
        PERFORM 1 FROM queen.partition_ages a
        WHERE a.partition_id = ANY (v_targets.partition_ids) AND (a.oldest_at IS NULL OR v_waits AND a.unread_at = 'infinity')
        ORDER BY a.partition_id FOR NO KEY UPDATE;
    END IF;
    IF p_bounded AND v_limited IS NOT NULL THEN
        -- The rows of the queues are locked, so that nobody else adds to their sizes.
        PERFORM queen.free_room(q.id, w.messages)
        FROM queen.queues q
        JOIN (
            SELECT n.queue, sum(n.rows)::bigint AS messages
            FROM unnest(p_attempts, p_places) AS k (attempt, place)
            JOIN queen.pipeline_chunks c ON c.attempt = k.attempt AND c.place = k.place
            CROSS JOIN LATERAL unnest(c.queues, c.counts) AS n (queue, rows)
            GROUP BY n.queue
        ) w ON w.queue = q.name
        WHERE q.id = ANY (v_limited);
        v_sizes := ARRAY(
            SELECT z.size FROM unnest(v_limited) WITH ORDINALITY AS t (id, i) JOIN queen.queue_sizes z ON z.queue_id = t.id ORDER BY t.i);
    END IF;

    written := 0;
    duplicates := 0;
    FOR n IN 1..cardinality(p_places) LOOP
        v_moved := queen.move_chunk(p_attempts[n], p_places[n]);
        written := written + v_moved.written;
        duplicates := duplicates + v_moved.duplicates;
    END LOOP;

    IF v_sizes IS NOT NULL THEN
        SELECT array_agg(q.name) INTO v_full
        FROM unnest(v_limited, v_sizes) AS t (id, size)
        JOIN queen.queues q ON q.id = t.id
        JOIN queen.queue_sizes z ON z.queue_id = t.id
        WHERE z.size > t.size AND z.size > q.max_size;
        IF v_full IS NOT NULL THEN
            RAISE SQLSTATE 'QN004' USING MESSAGE = 'a queue is full (maxSize)', DETAIL = array_to_json(v_full)::text;
        END IF;
    END IF;
END $$;
