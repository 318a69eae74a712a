-- One cycle of a stream engine, all of it or nothing: push, change the state of a query, and finish what the group had delivered up to and
-- with one message. The push parameters are as of queen.push; p_kind is upsert or delete. p_ack is the transaction id of the message, null
-- for none; p_lease null is unfenced; p_release false keeps the lease over what is left. What cannot be done raises QN001 with the sentence
-- for the caller: also a cycle that was applied before, because its message is not delivered any more.
-- A cycle that deletes state without a message changes nothing and says so in `stale` if that state is not what its engine has read
-- (queen.is_stale_flush); one that meets a pop just then raises lock_not_available.
-- Locks: the query and partition (advisory), so that cycles of the same come one after the other; as queen.push; rows of stream_state; as
-- queen.ack. Without a message, the group's row, without waiting.
CREATE OR REPLACE FUNCTION queen.stream_cycle(
    p_queues text[], p_partitions text[], p_known uuid[],
    p_target integer[], p_rank integer[], p_id uuid[], p_push_transaction text[], p_trace uuid[],
    p_payload bytea[], p_encrypted boolean[], p_producer text[], p_headers jsonb[],
    p_query uuid, p_partition uuid, p_group text,
    p_kind text[], p_key text[], p_value bytea[], p_window_end double precision[],
    p_ack text, p_lease uuid, p_status text, p_error text, p_release boolean,
    OUT partition_ids uuid[], OUT duplicate_index integer[], OUT duplicate_id uuid[],
    OUT queue_name text, OUT partition_name text, OUT acked integer, OUT released boolean, OUT dead_lettered boolean,
    OUT stale boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_push    record;
    v_row     queen.partition_consumers;
    v_offset  bigint;
    v_all     text[];
    v_problem text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(p_query::text || p_partition::text, 0));
    PERFORM 1 FROM queen.stream_queries WHERE id = p_query FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE SQLSTATE 'QN001' USING MESSAGE = 'Query not found';
    END IF;
    SELECT q.name, p.name INTO queue_name, partition_name
    FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
    WHERE p.id = p_partition AND q.name IS NOT NULL;
    IF NOT FOUND THEN
        RAISE SQLSTATE 'QN001' USING MESSAGE = 'Partition not found';
    END IF;

    IF p_ack IS NULL AND 'delete' = ANY (p_kind)
       AND queen.is_stale_flush(p_query, p_partition, p_group, p_kind, p_key, cardinality(p_target) > 0) THEN
        stale := true;
        RETURN;
    END IF;
    IF cardinality(p_target) > 0 THEN
        v_push := queen.push(p_queues, p_partitions, p_known, p_target, p_rank, p_id, p_push_transaction, p_trace, p_payload,
                             p_encrypted, p_producer, p_headers);
        IF v_push.refused IS NOT NULL THEN
            RAISE SQLSTATE 'QN001' USING MESSAGE = 'the push would exceed max capacity of its queue (maxSize)';
        END IF;
        partition_ids := v_push.partition_ids;
        duplicate_index := v_push.duplicate_index;
        duplicate_id := v_push.duplicate_id;
    END IF;

    -- Of several operations on a key the last one counts.
    WITH op AS (
        SELECT DISTINCT ON (t.key) t.* FROM unnest(p_kind, p_key, p_value, p_window_end)
            WITH ORDINALITY AS t (kind, key, value, window_end, i) ORDER BY t.key, t.i DESC
    ), gone AS (
        DELETE FROM queen.stream_state s USING op
        WHERE op.kind = 'delete' AND s.query_id = p_query AND s.partition_id = p_partition AND s.key = op.key
    )
    INSERT INTO queen.stream_state (query_id, partition_id, key, value, window_end)
    SELECT p_query, p_partition, op.key, op.value, op.window_end FROM op WHERE op.kind = 'upsert' ORDER BY op.key
    ON CONFLICT (query_id, partition_id, key) DO UPDATE
    SET value = excluded.value, window_end = excluded.window_end,
        updated_at = greatest(excluded.updated_at, stream_state.updated_at + interval '1 microsecond');

    IF p_ack IS NULL THEN
        -- Until the commit nobody may take a lease and read what is deleted here. After the push, because heads come before groups' rows.
        IF 'delete' = ANY (p_kind) THEN
            PERFORM 1 FROM queen.partition_consumers c
            WHERE c.partition_id = p_partition AND c.consumer_group = p_group
              AND (c.lease_id IS NULL OR c.lease_expires_at <= clock_timestamp())
            FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND AND EXISTS (
                SELECT 1 FROM queen.partition_consumers c WHERE c.partition_id = p_partition AND c.consumer_group = p_group) THEN
                RAISE lock_not_available USING MESSAGE = 'the group is popping from the partition just now';
            END IF;
        END IF;
        RETURN;
    END IF;
    SELECT m."offset" INTO v_offset FROM queen.messages m WHERE m.partition_id = p_partition AND m.transaction_id = p_ack;
    IF NOT FOUND THEN
        RAISE SQLSTATE 'QN001' USING MESSAGE = 'Message not found';
    END IF;
    SELECT * INTO v_row FROM queen.partition_consumers
    WHERE partition_id = p_partition AND consumer_group = p_group FOR NO KEY UPDATE;
    IF NOT FOUND OR v_row.lease_id IS NULL OR (p_lease IS NOT NULL AND v_row.lease_id <> p_lease)
       OR v_row.lease_expires_at <= clock_timestamp() OR NOT v_row.lease_offsets @> v_offset THEN
        RAISE SQLSTATE 'QN001' USING MESSAGE = 'Invalid or expired lease';
    END IF;
    SELECT array_agg(m.transaction_id ORDER BY m."offset") INTO v_all FROM queen.messages m
    WHERE m.partition_id = p_partition AND m."offset" >= lower(v_row.lease_offsets) AND m."offset" <= v_offset
      AND v_row.lease_offsets @> m."offset";
    acked := cardinality(v_all);
    dead_lettered := p_status <> 'completed';
    SELECT max(a.problem), bool_or(a.lease_released) INTO v_problem, released
    FROM queen.ack(array_fill(p_partition, ARRAY[acked]), v_all, array_fill(p_group, ARRAY[acked]),
                   array_fill(v_row.lease_id, ARRAY[acked]),
                   array_fill('completed'::text, ARRAY[acked - 1]) || CASE WHEN dead_lettered THEN 'dlq' ELSE 'completed' END,
                   array_fill(NULL::text, ARRAY[acked - 1]) || p_error) a;
    IF v_problem IS NOT NULL THEN
        RAISE SQLSTATE 'QN001' USING MESSAGE = v_problem;
    END IF;
    IF NOT released AND (p_release OR dead_lettered) THEN
        UPDATE queen.partition_consumers SET lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL
        WHERE partition_id = p_partition AND consumer_group = p_group;
        PERFORM queen.settle(ARRAY[p_partition], ARRAY[p_group], false);
        released := true;
    END IF;
END $$;
