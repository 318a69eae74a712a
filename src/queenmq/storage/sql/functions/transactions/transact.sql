-- Push and acknowledge in one transaction: all of it or nothing. Parameters as of queen.push and queen.ack.
-- p_expected is the last offset that each target must have, or null if any will do; without it, all may be as they are.
-- Any message that is there already, is refused, or any ack that fails, raises QN001 with the sentence for the caller. A target with
-- another last offset than the expected one raises QN008, with the last offsets of all targets as its detail.
-- Locks: as queen.push, then as queen.ack.
CREATE OR REPLACE FUNCTION queen.transact(
    p_queues text[], p_partitions text[], p_known uuid[],
    p_target integer[], p_rank integer[], p_id uuid[], p_push_transaction text[], p_trace uuid[],
    p_payload bytea[], p_encrypted boolean[], p_producer text[], p_headers jsonb[],
    p_partition uuid[], p_transaction text[], p_group text[], p_lease uuid[], p_status text[], p_error text[],
    p_required uuid[], p_expected bigint[] DEFAULT NULL,
    OUT partition_ids uuid[], OUT dead_lettered boolean[], OUT ack_queues text[],
    OUT ack_partitions text[], OUT ack_groups text[], OUT last_offsets bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    v_push    record;
    v_problem text;
    v_last    bigint[];
    v_taken   text;
BEGIN
    IF cardinality(p_target) > 0 THEN
        IF p_expected IS NOT NULL THEN
            SELECT t.partition_ids, t.last_offsets INTO partition_ids, v_last
            FROM queen.lock_targets(p_queues, p_partitions, p_known, true) t;
            p_known := partition_ids;
            IF EXISTS (SELECT 1 FROM unnest(p_expected, v_last) AS t (expected, actual) WHERE t.expected <> t.actual) THEN
                -- A repetition is reported as one: it is itself the reason why the partition does not end there any more.
                SELECT t.transaction_id INTO v_taken FROM unnest(p_target, p_push_transaction) AS t (target, transaction_id)
                JOIN queen.messages m ON m.partition_id = partition_ids[t.target] AND m.transaction_id = t.transaction_id
                LIMIT 1;
                IF v_taken IS NULL THEN
                    RAISE SQLSTATE 'QN008' USING MESSAGE = 'a partition does not end where it is expected to',
                        DETAIL = array_to_json(v_last)::text;
                END IF;
            END IF;
        END IF;
        v_push := queen.push(p_queues, p_partitions, p_known, p_target, p_rank, p_id, p_push_transaction, p_trace, p_payload,
                             p_encrypted, p_producer, p_headers);
        partition_ids := v_push.partition_ids;
        last_offsets := v_push.last_offsets;
        IF v_push.duplicate_index IS NOT NULL THEN
            RAISE SQLSTATE 'QN001' USING MESSAGE = format(
                'duplicate key value violates unique constraint: transactionId %s is already used in this partition',
                quote_literal(p_push_transaction[v_push.duplicate_index[1]]));
        END IF;
        IF v_push.refused IS NOT NULL THEN
            RAISE SQLSTATE 'QN001' USING MESSAGE = 'the push would exceed max capacity of its queue (maxSize)';
        END IF;
    END IF;
    IF cardinality(p_partition) > 0 THEN
        SELECT array_agg(a.dead_lettered ORDER BY a.index), array_agg(a.queue_name ORDER BY a.index),
               array_agg(a.partition_name ORDER BY a.index), array_agg(a.consumer_group ORDER BY a.index),
               (array_agg(a.problem ORDER BY a.index) FILTER (WHERE a.problem IS NOT NULL))[1]
        INTO dead_lettered, ack_queues, ack_partitions, ack_groups, v_problem
        FROM queen.ack(p_partition, p_transaction, p_group, p_lease, p_status, p_error, p_required) a;
        IF v_problem IS NOT NULL THEN
            RAISE SQLSTATE 'QN001' USING MESSAGE = 'ACK operation failed: ' || v_problem;
        END IF;
    END IF;
END $$;
