-- Store a merged batch of pushes, each all or not at all, and only if its partitions end where the producer expects.
-- The messages are as of queen.push. p_owner is the request of each target, of which no other request has a message; p_expected is the
-- last offset that the target must have, or null if any will do.
-- Returns the partition of each target and its last offset as this call found it; for each message the id under which its transactionId
-- is stored and its offset, both null if it is not stored; the requests that found another last offset; and those that a target with
-- unfinished operations refuses: they can be tried again later. A request whose messages are all there already was stored before, and is
-- never refused. A queue without room for all messages of a request raises QN001, and a payload in clear raises QN002 as in queen.push.
-- Locks: as queen.push. The offsets are compared under the locks of the heads, so no other push gets between the question and the answer.
CREATE OR REPLACE FUNCTION queen.push_expected(
    p_queues text[], p_partitions text[], p_known uuid[],
    p_target integer[], p_rank integer[], p_id uuid[], p_transaction text[], p_trace uuid[],
    p_payload bytea[], p_encrypted boolean[], p_producer text[], p_headers jsonb[], p_owner integer[], p_expected bigint[],
    OUT partition_ids uuid[], OUT last_offsets bigint[], OUT stored_id uuid[], OUT stored_offset bigint[],
    OUT conflicting integer[], OUT behind integer[])
LANGUAGE plpgsql AS $$
DECLARE
    v_stored  integer[];
    v_kept    integer[];
    v_refused integer[];
BEGIN
    SELECT t.partition_ids, t.last_offsets INTO partition_ids, last_offsets
    FROM queen.lock_targets(p_queues, p_partitions, p_known, true) t;

    v_stored := ARRAY(
        SELECT p_owner[t.target] FROM unnest(p_target, p_transaction) AS t (target, transaction_id)
        LEFT JOIN queen.messages m ON m.partition_id = partition_ids[t.target] AND m.transaction_id = t.transaction_id
        GROUP BY 1 HAVING bool_and(m.id IS NOT NULL));
    SELECT array_agg(DISTINCT t.owner) INTO conflicting
    FROM unnest(p_owner, p_expected, last_offsets) AS t (owner, expected, actual)
    WHERE t.expected <> t.actual AND t.owner <> ALL (v_stored);
    SELECT array_agg(DISTINCT t.owner) INTO behind
    FROM queen.operation_queue o JOIN unnest(p_owner, partition_ids) AS t (owner, partition_id) USING (partition_id)
    WHERE o.partition_id = ANY (partition_ids) AND o.status IN ('pending', 'processing') AND t.owner <> ALL (v_stored);

    v_kept := ARRAY(
        SELECT t.i::integer FROM unnest(p_owner) WITH ORDINALITY AS t (owner, i)
        WHERE t.owner <> ALL (v_stored || conflicting || behind) ORDER BY t.i);
    IF cardinality(v_kept) > 0 THEN
        SELECT p.refused INTO v_refused
        FROM (
            SELECT array_agg(array_position(v_kept, m.target) ORDER BY m.i) AS target, array_agg(m.rank ORDER BY m.i) AS rank,
                   array_agg(m.id ORDER BY m.i) AS id, array_agg(m.transaction_id ORDER BY m.i) AS transaction_id,
                   CASE WHEN p_trace IS NOT NULL THEN array_agg(m.trace_id ORDER BY m.i) END AS trace_id,
                   array_agg(m.payload ORDER BY m.i) AS payload,
                   CASE WHEN p_encrypted IS NOT NULL THEN array_agg(m.is_encrypted ORDER BY m.i) END AS is_encrypted,
                   CASE WHEN p_producer IS NOT NULL THEN array_agg(m.producer_sub ORDER BY m.i) END AS producer_sub,
                   CASE WHEN p_headers IS NOT NULL THEN array_agg(m.headers ORDER BY m.i) END AS headers
            FROM unnest(p_target, p_rank, p_id, p_transaction, p_trace, p_payload, p_encrypted, p_producer, p_headers)
                 WITH ORDINALITY AS m (target, rank, id, transaction_id, trace_id, payload, is_encrypted, producer_sub, headers, i)
            WHERE m.target = ANY (v_kept)
        ) m, LATERAL queen.push(
            ARRAY(SELECT p_queues[k.target] FROM unnest(v_kept) WITH ORDINALITY AS k (target, i) ORDER BY k.i),
            ARRAY(SELECT p_partitions[k.target] FROM unnest(v_kept) WITH ORDINALITY AS k (target, i) ORDER BY k.i),
            ARRAY(SELECT partition_ids[k.target] FROM unnest(v_kept) WITH ORDINALITY AS k (target, i) ORDER BY k.i),
            m.target, m.rank, m.id, m.transaction_id, m.trace_id, m.payload, m.is_encrypted, m.producer_sub,
            m.headers) p;
        IF v_refused IS NOT NULL THEN
            RAISE SQLSTATE 'QN001' USING MESSAGE = 'the push would exceed max capacity of its queue (maxSize)';
        END IF;
    END IF;

    -- Of a request that was refused, messages may be there that others have pushed: they say nothing about this one.
    SELECT array_agg(m.id ORDER BY t.i), array_agg(m."offset" ORDER BY t.i) INTO stored_id, stored_offset
    FROM unnest(p_target, p_transaction) WITH ORDINALITY AS t (target, transaction_id, i)
    LEFT JOIN queen.messages m ON m.partition_id = partition_ids[t.target] AND m.transaction_id = t.transaction_id
         AND p_owner[t.target] <> ALL ('{}'::integer[] || conflicting || behind);
END $$;
