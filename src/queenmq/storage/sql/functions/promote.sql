-- Move what tasks have staged into the queues: the commit of one epoch of a sink, all of it or nothing.
-- p_attempts are the attempts that count, p_rows how many rows they staged together. The rows of a partition get their offsets
-- in the order of `place`; a row without a transaction id has its message id for one. A transaction id that is there already, or
-- a second time among the rows, is left out.
-- An epoch that was committed before changes nothing: fresh is false.
-- Raises QN003 if staged rows are missing (PostgreSQL crashed meanwhile), QN002 as queen.push does, QN004 with the queues' names if
-- maxSize does not leave enough room, lock_not_available if a partition has queued operations: a message that was accepted before is not
-- overtaken, and the same call may succeed when they are done.
-- Locks, in this order: the key of the epoch, missing queues and partitions (queen.ensure_partitions), the queues by name (no deletion gets
-- between the names and the partitions), those with a size limit by id, rows of partition_lookup by partition, then what the trigger
-- on messages takes.
CREATE OR REPLACE FUNCTION queen.promote(
    p_sink text, p_epoch bigint, p_attempts bigint[], p_rows bigint,
    OUT fresh boolean, OUT written bigint, OUT duplicates bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_staged     bigint;
    v_named      boolean;
    v_queues     text[];
    v_partitions text[];
    v_ids        uuid[];
    v_limited    uuid[];
    v_secret     text[];
    v_full       text[];
    v_locked     integer;
    v_now        timestamptz;
BEGIN
    INSERT INTO queen.pipeline_commits (sink, epoch) VALUES (p_sink, p_epoch) ON CONFLICT DO NOTHING;
    fresh := FOUND;
    IF NOT fresh THEN
        SELECT c.rows, c.duplicates INTO written, duplicates FROM queen.pipeline_commits c
        WHERE c.sink = p_sink AND c.epoch = p_epoch;
        RETURN;
    END IF;

    SELECT count(*), coalesce(bool_or(transaction_id IS NOT NULL), false) INTO v_staged, v_named
    FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts);
    IF v_staged <> p_rows THEN
        RAISE SQLSTATE 'QN003' USING MESSAGE = format('%s rows were staged and %s are there', p_rows, v_staged);
    END IF;
    written := 0;
    duplicates := 0;
    IF v_staged = 0 THEN
        RETURN;
    END IF;
    SELECT array_agg(t.queue), array_agg(t.partition) INTO v_queues, v_partitions
    FROM (SELECT DISTINCT queue, partition FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts)) t;

    FOR attempt IN 1..10 LOOP
        PERFORM 1 FROM queen.queues WHERE name = ANY (v_queues) ORDER BY name FOR KEY SHARE;
        SELECT array_agg(p.id), array_agg(DISTINCT q.id) FILTER (WHERE q.max_size > 0),
               array_agg(DISTINCT q.name) FILTER (WHERE q.encryption_enabled)
        INTO v_ids, v_limited, v_secret
        FROM unnest(v_queues, v_partitions) AS t (queue, partition)
        JOIN queen.queues q ON q.name = t.queue
        JOIN LATERAL (
            SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.partition LIMIT 1
        ) p ON true;
        IF cardinality(v_ids) IS DISTINCT FROM cardinality(v_queues) THEN
            PERFORM queen.ensure_partitions(v_queues, v_partitions);
            CONTINUE;
        END IF;
        IF v_limited IS NOT NULL THEN
            PERFORM 1 FROM queen.queues WHERE id = ANY (v_limited) ORDER BY id FOR NO KEY UPDATE;
        END IF;
        SELECT count(*) INTO v_locked FROM (
            SELECT 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_ids) ORDER BY partition_id FOR NO KEY UPDATE
        ) held;
        -- Fewer heads than targets: a queue was deleted while this call waited. It is made anew.
        EXIT WHEN v_locked = cardinality(v_ids);
        v_ids := NULL;
    END LOOP;
    IF v_ids IS NULL THEN
        RAISE lock_not_available USING MESSAGE = 'the queue is being deleted again and again';
    END IF;

    IF EXISTS (
        SELECT 1 FROM queen.operation_queue o
        WHERE o.partition_id = ANY (v_ids) AND o.status IN ('pending', 'processing')
    ) THEN
        RAISE lock_not_available USING MESSAGE = 'a partition has queued operations';
    END IF;
    IF v_secret IS NOT NULL AND EXISTS (
        SELECT 1 FROM queen.pipeline_staged s
        WHERE s.attempt = ANY (p_attempts) AND NOT s.is_encrypted AND s.queue = ANY (v_secret)
    ) THEN
        RAISE SQLSTATE 'QN002' USING MESSAGE = 'a queue demands encrypted payloads',
            DETAIL = array_to_json(v_secret)::text;
    END IF;
    IF v_limited IS NOT NULL THEN
        SELECT array_agg(q.name) INTO v_full FROM queen.queues q
        WHERE q.id = ANY (v_limited) AND q.max_size <
              (SELECT count(*) FROM queen.pipeline_staged s WHERE s.attempt = ANY (p_attempts) AND s.queue = q.name)
              + (SELECT coalesce(sum(queen.unread(l)), 0) FROM queen.partition_lookup l WHERE l.queue_id = q.id);
        IF v_full IS NOT NULL THEN
            RAISE SQLSTATE 'QN004' USING MESSAGE = 'a queue is full (maxSize)', DETAIL = array_to_json(v_full)::text;
        END IF;
    END IF;

    -- Staged rows have no statistics, so the planner is told what many rows want.
    PERFORM set_config('work_mem', '64MB', true), set_config('enable_nestloop', (v_staged < 1000)::text, true);
    IF v_named THEN
        DELETE FROM queen.pipeline_staged s USING (
            SELECT n.attempt, n.place, d.there, row_number() OVER (
                       PARTITION BY n.queue, n.partition, n.transaction_id ORDER BY n.place) AS nth
            FROM queen.pipeline_staged n
            JOIN queen.queues q ON q.name = n.queue
            JOIN queen.partitions p ON p.queue_id = q.id AND p.name = n.partition
            -- LIMIT keeps it at one probe of the index a row.
            LEFT JOIN LATERAL (
                SELECT true AS there FROM queen.messages m
                WHERE m.partition_id = p.id AND m.transaction_id = n.transaction_id LIMIT 1
            ) d ON true
            WHERE n.attempt = ANY (p_attempts) AND n.transaction_id IS NOT NULL
        ) x
        WHERE s.attempt = x.attempt AND s.place = x.place AND (x.there OR x.nth > 1);
        GET DIAGNOSTICS duplicates = ROW_COUNT;
    END IF;

    v_now := clock_timestamp();
    WITH moved AS (
        DELETE FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts) RETURNING *
    )
    INSERT INTO queen.messages
        (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, payload)
    SELECT p.id, l.last_offset + row_number() OVER (PARTITION BY p.id ORDER BY s.place),
           s.message_id::uuid, greatest(v_now, l.last_message_at), s.is_encrypted,
           coalesce(s.transaction_id, s.message_id), s.trace_id::uuid, s.payload
    FROM moved s
    JOIN queen.queues q ON q.name = s.queue
    JOIN queen.partitions p ON p.queue_id = q.id AND p.name = s.partition
    JOIN queen.partition_lookup l ON l.partition_id = p.id;
    GET DIAGNOSTICS written = ROW_COUNT;
    UPDATE queen.pipeline_commits c SET rows = promote.written, duplicates = promote.duplicates
    WHERE c.sink = p_sink AND c.epoch = p_epoch;
    -- Long polls look at once; beyond so many queues at a time they find it at their next look.
    PERFORM pg_notify('queen_written', t.queue)
    FROM (SELECT DISTINCT queue FROM unnest(v_queues) AS q (queue) LIMIT 100) t;
END $$;
