-- Move the next rows of an epoch that queen.promote has decided into the queues, p_most at most. Returns false when there are none left and what was
-- kept for them is removed; the epoch is finished then. Rows keep their order within a partition; what others push between two steps comes
-- between them. A transaction id that is there already, or a second time among the rows, is left out. Anybody may do a step at any time: each is done once.
-- Raises lock_not_available if a partition has queued operations, as queen.promote does. maxSize and encryption were decided with the epoch.
-- Locks, in this order: the epoch, the queues that exist by name (FOR KEY SHARE), as queen.lock_targets, then what the trigger on messages takes.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.promote_step(p_sink text, p_epoch bigint, p_most bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_commit     queen.pipeline_commits;
    v_last       bigint;
    v_queues     text[];
    v_partitions text[];
    v_ids        uuid[];
    v_base       bigint[];
    v_at         timestamptz[];
    v_limited    uuid[];
    v_now        timestamptz;
    v_written    bigint;
BEGIN
    SELECT * INTO v_commit FROM queen.pipeline_commits c
    WHERE c.sink = p_sink AND c.epoch = p_epoch AND c.promotion IS NOT NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_last := least(v_commit.promoted + p_most, v_commit.rows + v_commit.duplicates);
    IF v_last = v_commit.promoted THEN
        DELETE FROM queen.pipeline_promoting WHERE promotion = v_commit.promotion;
        UPDATE queen.pipeline_commits c SET promotion = NULL WHERE c.sink = p_sink AND c.epoch = p_epoch;
        RETURN false;
    END IF;
    SELECT array_agg(t.queue), array_agg(t.partition) INTO v_queues, v_partitions
    FROM (
        SELECT DISTINCT r.queue, r.partition FROM queen.pipeline_promoting r
        WHERE r.promotion = v_commit.promotion AND r.place > v_commit.promoted AND r.place <= v_last
    ) t;

    PERFORM 1 FROM queen.queues WHERE name = ANY (v_queues) ORDER BY name FOR KEY SHARE;
    SELECT t.partition_ids, t.last_offsets, t.last_times, t.limited INTO v_ids, v_base, v_at, v_limited
    FROM queen.lock_targets(v_queues, v_partitions, NULL, true) t;
    IF EXISTS (
        SELECT 1 FROM queen.operation_queue o
        WHERE o.partition_id = ANY (v_ids) AND o.status IN ('pending', 'processing')
    ) THEN
        RAISE lock_not_available USING MESSAGE = 'a partition has queued operations';
    END IF;
    v_now := clock_timestamp();
    WITH here AS (
        SELECT r.*, t.id, t.last_offset, t.last_time,
               row_number() OVER (PARTITION BY r.queue, r.partition, r.transaction_id ORDER BY r.place) AS nth
        FROM queen.pipeline_promoting r
        JOIN unnest(v_queues, v_partitions, v_ids, v_base, v_at) AS t (queue, partition, id, last_offset, last_time)
          ON t.queue = r.queue AND t.partition = r.partition
        WHERE r.promotion = v_commit.promotion AND r.place > v_commit.promoted AND r.place <= v_last
    ), written AS (
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, payload, headers)
        SELECT h.id, h.last_offset + row_number() OVER (PARTITION BY h.id ORDER BY h.place),
               h.message_id::uuid, greatest(v_now, h.last_time), h.is_encrypted,
               coalesce(h.transaction_id, h.message_id), h.trace_id::uuid, h.payload, h.headers::jsonb
        FROM here h
        -- LIMIT keeps it at one probe of the index a row.
        LEFT JOIN LATERAL (
            SELECT true AS there FROM queen.messages m
            WHERE m.partition_id = h.id AND m.transaction_id = h.transaction_id LIMIT 1
        ) d ON true
        WHERE h.transaction_id IS NULL OR (d.there IS NULL AND h.nth = 1)
        RETURNING partition_id
    ), grown AS (
        UPDATE queen.queue_sizes z SET size = z.size + w.messages
        FROM (
            SELECT l.queue_id, count(*) AS messages FROM written n
            JOIN queen.partition_lookup l ON l.partition_id = n.partition_id
            WHERE l.queue_id = ANY (v_limited) GROUP BY l.queue_id
        ) w
        WHERE z.queue_id = w.queue_id
    )
    SELECT count(*) INTO v_written FROM written;
    UPDATE queen.pipeline_commits c
    SET promoted = v_last, committed_at = clock_timestamp(), rows = v_commit.rows - (v_last - v_commit.promoted - v_written),
        duplicates = v_commit.duplicates + (v_last - v_commit.promoted - v_written)
    WHERE c.sink = p_sink AND c.epoch = p_epoch;
    PERFORM pg_notify('queen_written', t.queue)
    FROM (SELECT DISTINCT queue FROM unnest(v_queues) AS q (queue) LIMIT 100) t;
    RETURN true;
END $$;
