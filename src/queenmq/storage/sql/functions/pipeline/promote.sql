-- Move what tasks have staged into the queues: the commit of one epoch of a sink, all of it or nothing. An epoch of more than p_most rows (null: of any
-- number) is only decided here: its rows are kept in pipeline_promoting, and queen.promote_step moves them. One into a queue with maxSize is moved at once.
-- p_attempts are the attempts that count, p_rows how many rows they staged together. The rows of a partition get their offsets
-- in the order of `place`; a row without a transaction id has its message id for one. A transaction id that is there already, or
-- a second time among the rows, is left out.
-- An epoch that was committed before changes nothing: fresh is false.
-- Raises QN003 if staged rows are missing (PostgreSQL crashed meanwhile, or they were swept), QN002 as queen.push does, QN004 with the queues' names if
-- maxSize does not leave room for all that would be written (queen.free_room, as for a push), lock_not_available if a partition has
-- queued operations: a message that was accepted before is not overtaken, and the same call may succeed when they are done.
-- Locks, in this order: the key of the epoch, the queues that exist by name (FOR KEY SHARE), as queen.lock_targets, then what the trigger on messages takes.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.promote(
    p_sink text, p_epoch bigint, p_attempts bigint[], p_rows bigint, p_most bigint DEFAULT NULL,
    OUT fresh boolean, OUT written bigint, OUT duplicates bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_staged     bigint;
    v_named      boolean;
    v_small      boolean;  -- a queue is, by its maxSize
    v_queues     text[];
    v_partitions text[];
    v_ids        uuid[];
    v_base       bigint[];
    v_at         timestamptz[];
    v_limited    uuid[];
    v_secret     text[];
    v_full       text[];
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
    -- Staged rows have no statistics, so the planner gets settings that suit many rows.
    PERFORM set_config('work_mem', '64MB', true), set_config('enable_nestloop', (v_staged < 100)::text, true);
    IF v_staged > p_most THEN
        SELECT coalesce(bool_or(q.max_size > 0), false), array_agg(q.name) FILTER (WHERE q.encryption_enabled AND NOT s.encrypted)
        INTO v_small, v_secret
        FROM (SELECT queue, bool_and(is_encrypted) AS encrypted FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts) GROUP BY queue) s
        JOIN queen.queues q ON q.name = s.queue;
        IF v_secret IS NOT NULL THEN
            RAISE SQLSTATE 'QN002' USING MESSAGE = 'a queue demands encrypted payloads', DETAIL = array_to_json(v_secret)::text;
        END IF;
        IF NOT v_small THEN
            INSERT INTO queen.pipeline_promoting
                (promotion, place, queue, partition, message_id, transaction_id, trace_id, is_encrypted, payload, headers)
            SELECT p_attempts[1], row_number() OVER (ORDER BY s.queue, s.partition, s.place), s.queue, s.partition, s.message_id,
                   s.transaction_id, s.trace_id, s.is_encrypted, s.payload, s.headers
            FROM queen.pipeline_staged s WHERE s.attempt = ANY (p_attempts);
            UPDATE queen.pipeline_commits c SET rows = v_staged, promotion = p_attempts[1]
            WHERE c.sink = p_sink AND c.epoch = p_epoch;
            written := v_staged;
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(t.queue), array_agg(t.partition) INTO v_queues, v_partitions
    FROM (SELECT DISTINCT queue, partition FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts)) t;

    -- A queue that is there keeps its name until the rows are committed: a deletion waits.
    PERFORM 1 FROM queen.queues WHERE name = ANY (v_queues) ORDER BY name FOR KEY SHARE;
    SELECT t.partition_ids, t.last_offsets, t.last_times, t.limited, t.encrypted
    INTO v_ids, v_base, v_at, v_limited, v_secret
    FROM queen.lock_targets(v_queues, v_partitions, NULL, true) t;
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
    IF v_named THEN
        DELETE FROM queen.pipeline_staged s USING (
            SELECT n.attempt, n.place, d.there, row_number() OVER (
                       PARTITION BY n.queue, n.partition, n.transaction_id ORDER BY n.place) AS nth
            FROM queen.pipeline_staged n
            JOIN unnest(v_queues, v_partitions, v_ids) AS t (queue, partition, id) ON t.queue = n.queue AND t.partition = n.partition
            -- LIMIT keeps it at one probe of the index a row.
            LEFT JOIN LATERAL (
                SELECT true AS there FROM queen.messages m
                WHERE m.partition_id = t.id AND m.transaction_id = n.transaction_id LIMIT 1
            ) d ON true
            WHERE n.attempt = ANY (p_attempts) AND n.transaction_id IS NOT NULL
        ) x
        WHERE s.attempt = x.attempt AND s.place = x.place AND (x.there OR x.nth > 1);
        GET DIAGNOSTICS duplicates = ROW_COUNT;
    END IF;

    IF v_limited IS NOT NULL THEN
        SELECT array_agg(q.name) INTO v_full
        FROM queen.queues q
        JOIN (SELECT s.queue, count(*) AS messages FROM queen.pipeline_staged s WHERE s.attempt = ANY (p_attempts) GROUP BY s.queue) w
          ON w.queue = q.name
        WHERE q.id = ANY (v_limited) AND w.messages > queen.free_room(q.id, w.messages);
        IF v_full IS NOT NULL THEN
            RAISE SQLSTATE 'QN004' USING MESSAGE = 'a queue is full (maxSize)', DETAIL = array_to_json(v_full)::text;
        END IF;
        UPDATE queen.queue_sizes z SET size = z.size + w.messages
        FROM queen.queues q
        JOIN (SELECT s.queue, count(*) AS messages FROM queen.pipeline_staged s WHERE s.attempt = ANY (p_attempts) GROUP BY s.queue) w
          ON w.queue = q.name
        WHERE z.queue_id = q.id AND q.id = ANY (v_limited);
    END IF;

    v_now := clock_timestamp();
    WITH moved AS (
        DELETE FROM queen.pipeline_staged WHERE attempt = ANY (p_attempts) RETURNING *
    )
    INSERT INTO queen.messages
        (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, payload, headers)
    SELECT t.id, t.last_offset + row_number() OVER (PARTITION BY t.id ORDER BY s.place),
           s.message_id::uuid, greatest(v_now, t.last_time), s.is_encrypted,
           coalesce(s.transaction_id, s.message_id), s.trace_id::uuid, s.payload, s.headers::jsonb
    FROM moved s
    JOIN unnest(v_queues, v_partitions, v_ids, v_base, v_at) AS t (queue, partition, id, last_offset, last_time)
      ON t.queue = s.queue AND t.partition = s.partition;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written + duplicates <> p_rows THEN
        RAISE SQLSTATE 'QN003' USING MESSAGE = format('%s rows were staged and %s are there', p_rows, written + duplicates);
    END IF;
    UPDATE queen.pipeline_commits c SET rows = promote.written, duplicates = promote.duplicates
    WHERE c.sink = p_sink AND c.epoch = p_epoch;
    -- Wakes long polls at once; beyond so many queues at a time they find the messages at their next probe.
    PERFORM pg_notify('queen_written', t.queue)
    FROM (SELECT DISTINCT queue FROM unnest(v_queues) AS q (queue) LIMIT 100) t;
END $$;
