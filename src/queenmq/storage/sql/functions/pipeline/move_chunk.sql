-- Move the rows of a chunk into the queues and remove it. They get their offsets in the order in which they stand; a row without a transaction id
-- has its message id for one. A transaction id that is there already, or a second time among the rows, is left out.
-- Raises lock_not_available if a partition has queued operations: a message that was accepted before is not overtaken. QN003 if the chunk is gone.
-- Locks, in this order: the chunk, the queues that exist by name (FOR KEY SHARE), as queen.lock_targets, then what the trigger on messages takes.
CREATE OR REPLACE FUNCTION queen.move_chunk(p_attempt bigint, p_place bigint, OUT written bigint, OUT duplicates bigint)
LANGUAGE plpgsql
-- A plan that is made while the table is small would read the whole of it for every row that makes it large; one that is made for these arrays
-- has copies of them in which an element is found by walking over those before.
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_rows        integer;
    v_queues      text[];
    v_partitions  text[];
    v_counts      integer[];
    v_message     text[];
    v_transaction text[];
    v_trace       text[];
    v_encrypted   boolean[];
    v_headers     text[];
    v_payload     bytea[];
    v_targets     record;
    v_ids         uuid[];
    v_base        bigint[];
    v_at          timestamptz[];
    v_skip        integer[];
    v_now         timestamptz;
BEGIN
    DELETE FROM queen.pipeline_chunks c WHERE c.attempt = p_attempt AND c.place = p_place
    RETURNING c.rows, c.queues, c.partitions, c.counts, c.message_ids, c.transaction_ids, c.trace_ids, c.encrypted, c.headers, c.payloads
    INTO v_rows, v_queues, v_partitions, v_counts, v_message, v_transaction, v_trace, v_encrypted, v_headers, v_payload;
    IF NOT FOUND THEN
        RAISE SQLSTATE 'QN003' USING MESSAGE = 'staged rows were there and are gone';
    END IF;

    -- A queue that is there keeps its name until the rows are committed: a deletion waits.
    PERFORM 1 FROM queen.queues WHERE name = ANY (v_queues) ORDER BY name FOR KEY SHARE;
    v_targets := queen.lock_targets(v_queues, v_partitions, NULL, true);
    v_ids := v_targets.partition_ids;
    v_base := v_targets.last_offsets;
    v_at := v_targets.last_times;
    IF EXISTS (
        SELECT 1 FROM queen.operation_queue o WHERE o.partition_id = ANY (v_ids) AND o.status IN ('pending', 'processing')
    ) THEN
        RAISE lock_not_available USING MESSAGE = 'a partition has queued operations';
    END IF;

    IF v_transaction IS NOT NULL THEN
        SELECT array_agg(x.i) INTO v_skip
        FROM (
            SELECT t.i, d.there, row_number() OVER (PARTITION BY t.n, v_transaction[t.i] COLLATE "C" ORDER BY t.i) AS nth
            FROM (
                SELECT r.n, (sum(r.rows) OVER (ORDER BY r.n) - r.rows)::integer + generate_series(1, r.rows) AS i
                FROM unnest(v_counts) WITH ORDINALITY AS r (rows, n)
            ) t
            -- LIMIT keeps it at one probe of the index a row; a partition that never had a message needs none.
            LEFT JOIN LATERAL (
                SELECT true AS there FROM queen.messages m
                WHERE v_base[t.n] > 0 AND m.partition_id = v_ids[t.n] AND m.transaction_id = v_transaction[t.i] LIMIT 1
            ) d ON true
            WHERE v_transaction[t.i] IS NOT NULL
        ) x
        WHERE x.there OR x.nth > 1;
    END IF;

    v_now := clock_timestamp();
    -- As in queen.push, arrays are read by number: PL/pgSQL holds them in a form in which any element is found at once.
    IF v_skip IS NULL THEN
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, payload, headers)
        SELECT t.id, t.base + t.nth, v_message[t.before + t.nth]::uuid, t.at, coalesce(v_encrypted[t.before + t.nth], false),
               coalesce(v_transaction[t.before + t.nth], v_message[t.before + t.nth]), v_trace[t.before + t.nth]::uuid,
               v_payload[t.before + t.nth], v_headers[t.before + t.nth]::jsonb
        FROM (
            SELECT v_ids[r.n] AS id, v_base[r.n] AS base, greatest(v_now, v_at[r.n]) AS at,
                   (sum(r.rows) OVER (ORDER BY r.n) - r.rows)::integer AS before, generate_series(1, r.rows) AS nth
            FROM unnest(v_counts) WITH ORDINALITY AS r (rows, n)
        ) t;
    ELSE
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, payload, headers)
        SELECT v_ids[t.n], v_base[t.n] + row_number() OVER (PARTITION BY t.n ORDER BY t.i), v_message[t.i]::uuid,
               greatest(v_now, v_at[t.n]), coalesce(v_encrypted[t.i], false), coalesce(v_transaction[t.i], v_message[t.i]),
               v_trace[t.i]::uuid, v_payload[t.i], v_headers[t.i]::jsonb
        FROM (
            SELECT r.n, (sum(r.rows) OVER (ORDER BY r.n) - r.rows)::integer + generate_series(1, r.rows) AS i
            FROM unnest(v_counts) WITH ORDINALITY AS r (rows, n)
        ) t
        LEFT JOIN unnest(v_skip) AS s (i) ON s.i = t.i
        WHERE s.i IS NULL;
    END IF;
    GET DIAGNOSTICS written = ROW_COUNT;
    duplicates := v_rows - written;

    IF v_targets.limited IS NOT NULL THEN
        UPDATE queen.queue_sizes z SET size = z.size + w.messages
        FROM (
            SELECT l.queue_id, sum(l.last_offset - t.base) AS messages
            FROM unnest(v_ids, v_base) AS t (id, base)
            CROSS JOIN LATERAL (
                SELECT h.queue_id, h.last_offset FROM queen.partition_lookup h
                WHERE h.partition_id = t.id ORDER BY h.generation DESC LIMIT 1
            ) l
            WHERE l.queue_id = ANY (v_targets.limited) GROUP BY l.queue_id
        ) w
        WHERE z.queue_id = w.queue_id;
    END IF;
    -- Wakes long polls at once; beyond so many queues at a time they find the messages at their next probe.
    PERFORM pg_notify('queen_written', t.queue) FROM (SELECT DISTINCT queue FROM unnest(v_queues) AS q (queue) LIMIT 100) t;
END $$;
