-- The messages of the outbox that are to be pushed next, in the order of commits: at most p_most, with at most p_bytes of payload, or
-- one that is larger. Nothing while another server is at it. Partitions that are held are left out until their next attempt,
-- and those of p_behind_queues and p_behind (their names, in the same order).
-- p_floor is a number below which no commit is left: only a saving (see core/outbox_floor.py); one that no commit can have had yet is of another database, and is not used. Beside each message, for the caller:
-- `finished_below`, below which all transactions of PostgreSQL had ended before this was read; whether its partition was held; and
-- whether any partition is.
-- Locks: an advisory one, to the end of the transaction. What it reads is read after it was taken.
CREATE OR REPLACE FUNCTION queen.next_sends(p_floor bigint, p_most integer, p_bytes bigint, p_behind_queues text[], p_behind text[])
RETURNS TABLE (number bigint, sending bigint, "position" bigint, queue_name text, partition_name text, message_id uuid,
               transaction_id text, trace_id uuid, producer_sub text, sent_at timestamptz, payload bytea, headers jsonb, finished_below bigint,
               was_held boolean, any_held boolean)
LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    c        record;
    o        record;
    v_below  bigint;
    v_held   boolean;
    v_behind jsonb;
    v_found  integer := 0;
    v_bytes  bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('queen.outbox', 0)) THEN
        RETURN;
    END IF;
    v_below := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    IF p_floor > (SELECT last_value FROM queen.outbox_commits_number_seq) THEN
        p_floor := 0;
    END IF;
    SELECT jsonb_object_agg(jsonb_build_array(b.queue, b.partition)::text, true) INTO v_behind
    FROM unnest(p_behind_queues, p_behind) AS b (queue, partition);
    v_held := EXISTS (SELECT 1 FROM queen.outbox_held);
    FOR c IN SELECT oc.number, oc.sending FROM queen.outbox_commits oc WHERE oc.number >= p_floor ORDER BY oc.number LOOP
        FOR o IN
            SELECT ob.*, h.queue_name IS NOT NULL AS was_held
            FROM queen.outbox ob
            LEFT JOIN queen.outbox_held h ON v_held AND h.queue_name = ob.queue_name AND h.partition_name = ob.partition_name
            WHERE ob.sending = c.sending AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= now())
              AND (v_behind IS NULL OR NOT v_behind ? jsonb_build_array(ob.queue_name, ob.partition_name)::text)
            ORDER BY ob.position LIMIT p_most - v_found
        LOOP
            v_bytes := v_bytes + octet_length(o.payload);
            IF v_found > 0 AND v_bytes > p_bytes THEN
                RETURN;
            END IF;
            v_found := v_found + 1;
            RETURN QUERY SELECT c.number, o.sending, o.position, o.queue_name, o.partition_name, o.message_id, o.transaction_id,
                                o.trace_id, o.producer_sub, o.sent_at, o.payload, o.headers, v_below, o.was_held, v_held;
        END LOOP;
        EXIT WHEN v_found >= p_most;
    END LOOP;
END $$;
