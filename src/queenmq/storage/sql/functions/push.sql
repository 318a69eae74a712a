-- Store a merged batch of messages.
-- p_queues/p_partitions name the targets, each once; p_known has the ids of their partitions if the caller believes to know
-- all of them, else null: what is not true any more is looked up. The message arrays run in parallel, sorted by target and,
-- within a target, in the order in which the messages are to be read: p_target is an index into the targets, p_rank
-- counts from 1 within the target. No (target, transaction id) occurs twice.
-- Returns the partition of each target, the messages that were there already (index, stored id), and those that a
-- full queue refused. A payload in clear for a queue that demands encryption raises QN002 with the queues' names.
-- A target with unfinished operations is never written past them. What becomes of its messages is p_mode:
--   auto    they are queued as further operations, one for each request (p_request, parallel to the messages);
--   queue   the same, and so are those of all other targets;
--   refuse  lock_not_available: the caller may try again. For callers that cannot wait for an operation;
--   now     they are written: only for the operations themselves, in their order.
-- Queued operations are returned as (target, request, id) and with how many were open before them; if that is p_limit or
-- more, nothing is queued and the targets are returned in overflow.
-- Locks, in this order: missing queues and partitions (queen.ensure_partitions), queues with a size limit by
-- id, rows of partition_lookup by partition, then what the trigger on messages takes. Whether a target has operations is
-- looked up under the lock of its head, and they are made under it, so nobody gets between the question and the answer.
CREATE OR REPLACE FUNCTION queen.push(
    p_queues text[], p_partitions text[], p_known uuid[],
    p_target integer[], p_rank integer[], p_id uuid[], p_transaction text[], p_trace uuid[],
    p_payload bytea[], p_encrypted boolean[], p_producer text[],
    p_mode text DEFAULT 'refuse', p_request integer[] DEFAULT NULL, p_limit integer DEFAULT NULL,
    OUT partition_ids uuid[], OUT duplicate_index integer[], OUT duplicate_id uuid[], OUT refused integer[],
    OUT queued_target integer[], OUT queued_request integer[], OUT queued_id uuid[], OUT queued_before bigint,
    OUT overflow integer[])
LANGUAGE plpgsql AS $$
DECLARE
    v_now      timestamptz;
    v_owners   uuid[];
    v_limited  uuid[];
    v_secret   text[];
    v_base     bigint[];
    v_at       timestamptz[];
    v_skip     integer[];
    v_behind   integer[];
BEGIN
    FOR attempt IN 1..10 LOOP
        IF attempt = 1 AND p_known IS NOT NULL THEN
            partition_ids := p_known;
            SELECT array_agg(q.id), array_agg(q.id) FILTER (WHERE q.max_size > 0),
                   array_agg(q.name) FILTER (WHERE q.encryption_enabled)
            INTO v_owners, v_limited, v_secret
            FROM queen.queues q WHERE q.name = ANY (p_queues);
        ELSE
            SELECT array_agg(p.id ORDER BY t.i), array_agg(DISTINCT q.id),
                   array_agg(DISTINCT q.id) FILTER (WHERE q.max_size > 0),
                   array_agg(DISTINCT q.name) FILTER (WHERE q.encryption_enabled)
            INTO partition_ids, v_owners, v_limited, v_secret
            FROM unnest(p_queues, p_partitions) WITH ORDINALITY AS t (queue, partition, i)
            LEFT JOIN queen.queues q ON q.name = t.queue
            -- LIMIT keeps the planner at one probe a target, whatever it believes about the tables.
            LEFT JOIN LATERAL (
                SELECT p.id FROM queen.partitions p WHERE p.queue_id = q.id AND p.name = t.partition LIMIT 1
            ) p ON true;
        END IF;

        IF array_position(partition_ids, NULL) IS NOT NULL THEN
            PERFORM queen.ensure_partitions(p_queues, p_partitions);
            CONTINUE;
        END IF;
        IF v_secret IS NOT NULL AND p_mode <> 'now' AND EXISTS (
            SELECT 1 FROM unnest(p_target, p_encrypted) AS t (target, is_encrypted)
            WHERE NOT t.is_encrypted AND p_queues[t.target] = ANY (v_secret)
        ) THEN
            RAISE SQLSTATE 'QN002' USING MESSAGE = 'a queue demands encrypted payloads',
                DETAIL = array_to_json(v_secret)::text;
        END IF;
        IF v_limited IS NOT NULL THEN
            PERFORM 1 FROM queen.queues WHERE id = ANY (v_limited) ORDER BY id FOR NO KEY UPDATE;
        END IF;
        SELECT array_agg(l.last_offset ORDER BY t.i), array_agg(l.last_message_at ORDER BY t.i)
        INTO v_base, v_at
        FROM (
            SELECT partition_id, last_offset, last_message_at FROM queen.partition_lookup
            WHERE partition_id = ANY (partition_ids) AND queue_id = ANY (v_owners) ORDER BY partition_id FOR NO KEY UPDATE
        ) l
        JOIN unnest(partition_ids) WITH ORDINALITY AS t (id, i) ON t.id = l.partition_id;
        -- Fewer heads than targets: a queue was deleted since its partitions were known, or while this call waited. It is made
        -- anew. Of a large one the old heads may still be there, but they belong to a queue that has no name any more.
        EXIT WHEN cardinality(v_base) = cardinality(partition_ids);
        partition_ids := NULL;
    END LOOP;
    IF partition_ids IS NULL THEN
        RAISE lock_not_available USING MESSAGE = 'the queue is being deleted again and again';
    END IF;

    IF p_mode = 'queue' THEN
        v_behind := ARRAY(SELECT generate_subscripts(partition_ids, 1));
    ELSIF p_mode <> 'now' THEN
        SELECT array_agg(DISTINCT array_position(partition_ids, o.partition_id)) INTO v_behind
        FROM queen.operation_queue o
        WHERE o.partition_id = ANY (partition_ids) AND o.status IN ('pending', 'processing');
    END IF;
    IF v_behind IS NOT NULL THEN
        IF p_mode = 'refuse' THEN
            RAISE lock_not_available USING MESSAGE = 'a partition has queued operations';
        END IF;
        SELECT q.targets, q.requests, q.ids, q.before, q.overflow
        INTO queued_target, queued_request, queued_id, queued_before, overflow
        FROM queen.queue_push(v_behind, p_queues, p_partitions, partition_ids, p_target, p_id, p_transaction, p_trace,
                              p_payload, p_encrypted, p_producer, p_request, p_limit) q;
        IF cardinality(v_behind) = cardinality(partition_ids) THEN
            RETURN;
        END IF;
        SELECT array_agg(t.i::integer) INTO v_skip
        FROM unnest(p_target) WITH ORDINALITY AS t (target, i) WHERE t.target = ANY (v_behind);
    END IF;

    SELECT array_agg(t.i::integer), array_agg(m.id) INTO duplicate_index, duplicate_id
    FROM unnest(p_target, p_transaction) WITH ORDINALITY AS t (target, transaction_id, i)
    JOIN queen.messages m ON m.partition_id = partition_ids[t.target] AND m.transaction_id = t.transaction_id
    WHERE v_behind IS NULL OR t.target <> ALL (v_behind);

    v_skip := v_skip || duplicate_index;
    IF v_limited IS NOT NULL THEN
        refused := queen.refuse_over_size(v_limited, partition_ids, p_target, v_skip);
        v_skip := v_skip || refused;
    END IF;

    v_now := clock_timestamp();
    IF v_skip IS NULL THEN
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, producer_sub, payload)
        SELECT partition_ids[t.target], v_base[t.target] + t.rank, t.id, greatest(v_now, v_at[t.target]),
               t.is_encrypted, t.transaction_id, t.trace_id, t.producer_sub, t.payload
        FROM unnest(p_target, p_rank, p_id, p_transaction, p_trace, p_payload, p_encrypted, p_producer)
             AS t (target, rank, id, transaction_id, trace_id, payload, is_encrypted, producer_sub);
    ELSE
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, producer_sub, payload)
        SELECT partition_ids[t.target],
               v_base[t.target] + row_number() OVER (PARTITION BY t.target ORDER BY t.rank),
               t.id, greatest(v_now, v_at[t.target]),
               t.is_encrypted, t.transaction_id, t.trace_id, t.producer_sub, t.payload
        FROM unnest(p_target, p_rank, p_id, p_transaction, p_trace, p_payload, p_encrypted, p_producer)
             WITH ORDINALITY AS t (target, rank, id, transaction_id, trace_id, payload, is_encrypted, producer_sub, i)
        LEFT JOIN unnest(v_skip) AS s (i) ON s.i = t.i
        WHERE s.i IS NULL;
    END IF;
END $$;
