-- Store a merged batch of messages.
-- p_queues, p_partitions and p_known are the targets as of queen.lock_targets. The message arrays run in parallel, sorted by
-- target and, within a target, in the order in which the messages are to be read: p_target is an index into the targets,
-- p_rank counts from 1 within the target. No (target, transaction id) occurs twice. p_trace and p_producer are null if no message has
-- any, p_headers as well, p_encrypted if none is encrypted: an array costs its caller as much as reading it does here.
-- Returns the partition of each target and its last offset before, the messages that were there already (index, stored id, offset), and those
-- that a full queue refused. What is stored follows that offset in its order, without gaps. A payload in clear for a queue that demands encryption raises QN002 with the queues' names.
-- A target with unfinished operations is never written past them. What becomes of its messages is p_mode:
--   auto      they are queued as further operations, one for each request (p_request, parallel to the messages);
--   accepted  the same, and no size limit refuses them: for pushes that were accepted before (the journal);
--   queue     as auto, and so are those of all other targets;
--   refuse    lock_not_available: the caller may try again. For callers that cannot wait for an operation;
--   now       they are written, whatever the size limit: only for the operations themselves, in their order.
-- Queued operations are returned as (target, request, id) and with how many were open before them; targets for which the operation
-- queue has no place left (p_limit, see queen.queue_push) are returned in overflow, and nothing of them is queued.
-- The size limit is decided here for what is stored and for what is queued alike (queen.refuse_over_size, also for p_held).
-- Locks, in this order: as queen.lock_targets, then what the trigger on messages takes. Whether a target has operations is
-- looked up under the lock of its head, and they are made under it, so no other push gets between the question and the answer.
CREATE OR REPLACE FUNCTION queen.push(
    p_queues text[], p_partitions text[], p_known uuid[],
    p_target integer[], p_rank integer[], p_id uuid[], p_transaction text[], p_trace uuid[],
    p_payload bytea[], p_encrypted boolean[], p_producer text[], p_headers jsonb[] DEFAULT NULL,
    p_mode text DEFAULT 'refuse', p_request integer[] DEFAULT NULL, p_limit integer DEFAULT NULL,
    p_held bigint[] DEFAULT NULL,
    OUT partition_ids uuid[], OUT duplicate_index integer[], OUT duplicate_id uuid[], OUT refused integer[],
    OUT queued_target integer[], OUT queued_request integer[], OUT queued_id uuid[], OUT queued_before bigint,
    OUT overflow integer[], OUT last_offsets bigint[], OUT duplicate_offset bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    v_targets  record;
    v_at       timestamptz[];
    v_limited  uuid[];
    v_secret   text[];
    v_now      timestamptz;
    v_skip     integer[];
    v_behind   integer[];
BEGIN
    -- Not in a FROM, which costs as much as another statement.
    v_targets := queen.lock_targets(p_queues, p_partitions, p_known, p_mode <> 'now');
    partition_ids := v_targets.partition_ids;
    last_offsets := v_targets.last_offsets;
    v_at := v_targets.last_times;
    v_limited := v_targets.limited;
    v_secret := v_targets.encrypted;
    -- The subquery stands in an IF of its own: PL/pgSQL sends a condition with one to the executor, also where it is not needed.
    IF v_secret IS NOT NULL AND p_mode <> 'now' THEN
        IF EXISTS (
            SELECT 1 FROM unnest(p_target, p_encrypted) AS t (target, is_encrypted)
            WHERE t.is_encrypted IS NOT TRUE AND p_queues[t.target] = ANY (v_secret)
        ) THEN
            RAISE SQLSTATE 'QN002' USING MESSAGE = 'a queue demands encrypted payloads',
                DETAIL = array_to_json(v_secret)::text;
        END IF;
    END IF;

    IF p_mode = 'queue' THEN
        v_behind := ARRAY(SELECT generate_subscripts(partition_ids, 1));
    ELSIF p_mode <> 'now' THEN
        SELECT array_agg(DISTINCT array_position(partition_ids, o.partition_id)) INTO v_behind
        FROM queen.operation_queue o
        WHERE o.partition_id = ANY (partition_ids) AND o.status IN ('pending', 'processing');
    END IF;
    IF v_behind IS NOT NULL AND p_mode = 'refuse' THEN
        RAISE lock_not_available USING MESSAGE = 'a partition has queued operations';
    END IF;
    IF v_limited IS NOT NULL AND p_mode <> 'accepted' THEN
        refused := queen.refuse_over_size(v_limited, partition_ids, p_target, p_transaction, p_held);
        v_skip := refused;
    END IF;
    IF v_behind IS NOT NULL THEN
        SELECT q.targets, q.requests, q.ids, q.before, q.overflow
        INTO queued_target, queued_request, queued_id, queued_before, overflow
        FROM queen.queue_push(v_behind, p_queues, p_partitions, partition_ids, p_target, p_id, p_transaction, p_trace,
                              p_payload, p_encrypted, p_producer, p_headers, p_request, p_limit, refused) q;
        IF cardinality(v_behind) = cardinality(partition_ids) THEN
            IF v_limited IS NOT NULL THEN
                PERFORM queen.add_to_size(v_limited, partition_ids, p_target, refused, overflow);
            END IF;
            RETURN;
        END IF;
        v_skip := v_skip || ARRAY(
            SELECT t.i::integer FROM unnest(p_target) WITH ORDINALITY AS t (target, i) WHERE t.target = ANY (v_behind));
    END IF;

    SELECT array_agg(t.i::integer), array_agg(m.id), array_agg(m."offset") INTO duplicate_index, duplicate_id, duplicate_offset
    FROM unnest(p_transaction) WITH ORDINALITY AS t (transaction_id, i)
    JOIN queen.messages m ON m.partition_id = partition_ids[p_target[t.i]] AND m.transaction_id = t.transaction_id
    WHERE v_behind IS NULL OR p_target[t.i] <> ALL (v_behind);

    v_skip := v_skip || duplicate_index;
    IF v_limited IS NOT NULL THEN
        PERFORM queen.add_to_size(v_limited, partition_ids, p_target, refused || duplicate_index, overflow);
    END IF;

    v_now := clock_timestamp();
    -- PL/pgSQL holds arrays in a form in which any element is found at once. unnest of all of them would copy each into a store of its own.
    IF v_skip IS NULL THEN
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, producer_sub, payload, headers)
        SELECT partition_ids[p_target[t.i]], last_offsets[p_target[t.i]] + p_rank[t.i], p_id[t.i], greatest(v_now, v_at[p_target[t.i]]),
               coalesce(p_encrypted[t.i], false), p_transaction[t.i], p_trace[t.i], p_producer[t.i], p_payload[t.i],
               p_headers[t.i]
        FROM (SELECT generate_subscripts(p_target, 1) AS i) t;
    ELSE
        INSERT INTO queen.messages
            (partition_id, "offset", id, created_at, is_encrypted, transaction_id, trace_id, producer_sub, payload, headers)
        SELECT partition_ids[t.target], last_offsets[t.target] + row_number() OVER (PARTITION BY t.target ORDER BY t.i),
               p_id[t.i], greatest(v_now, v_at[t.target]),
               coalesce(p_encrypted[t.i], false), p_transaction[t.i], p_trace[t.i], p_producer[t.i], p_payload[t.i],
               p_headers[t.i]
        FROM unnest(p_target) WITH ORDINALITY AS t (target, i)
        LEFT JOIN unnest(v_skip) AS s (i) ON s.i = t.i
        WHERE s.i IS NULL;
    END IF;
END $$;
