-- Apply changes of timers, given as parallel arrays: 'schedule' makes a timer or replaces the one of that key, 'cancel' removes it.
-- Returns one row for each, in the order given: the state it led to (scheduled, rescheduled, cancelled, absent) and the timer's ids and moment.
-- p_deliver_at is the moment; where it is null, p_delay_ms counts from now. A timer that is being pushed is waited for; it is gone then.
-- Changes of one timer are applied in the order given. Timers whose moments are in the past are due now, in the order of their moments.
-- Locks: timers by queue and key.
CREATE OR REPLACE FUNCTION queen.change_timers(
    p_change text[], p_queue text[], p_key text[], p_partition text[], p_delay_ms bigint[], p_deliver_at timestamptz[],
    p_id uuid[], p_transaction text[], p_trace uuid[], p_producer text[], p_encrypted boolean[], p_payload bytea[],
    p_schedule text[], p_time_zone text[], p_headers jsonb[])
RETURNS TABLE (i integer, became text, transaction_id text, message_id uuid, deliver_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_is_new boolean;
    v_now    timestamptz;
    v_place  bigint;
    v_due    timestamptz;
BEGIN
    -- Before the time is read, for the sake of the trigger timers_change.
    LOCK TABLE queen.timers IN ROW EXCLUSIVE MODE;
    v_now := clock_timestamp();
    PERFORM set_config('queen.timers_locked_at', extract(epoch FROM v_now)::text, true);
    FOR i, v_place IN
        SELECT c.i, row_number() OVER (ORDER BY coalesce(c.deliver_at, v_now + c.delay_ms * interval '1 millisecond'), c.i)
        FROM unnest(p_queue, p_key, p_deliver_at, p_delay_ms) WITH ORDINALITY AS c (queue_name, key, deliver_at, delay_ms, i)
        ORDER BY c.queue_name COLLATE "C", c.key COLLATE "C", c.i
    LOOP
        IF p_change[i] = 'cancel' THEN
            DELETE FROM queen.timers t WHERE t.queue_name = p_queue[i] AND t.key = p_key[i]
            RETURNING t.transaction_id, t.message_id, t.deliver_at INTO transaction_id, message_id, deliver_at;
            became := CASE WHEN FOUND THEN 'cancelled' ELSE 'absent' END;
        ELSE
            deliver_at := coalesce(p_deliver_at[i], v_now + p_delay_ms[i] * interval '1 millisecond');
            v_due := greatest(deliver_at, v_now + v_place * interval '1 microsecond');
            INSERT INTO queen.timers AS t
                (queue_name, key, partition_name, deliver_at, next_attempt_at, message_id, transaction_id, trace_id, producer_sub,
                 is_encrypted, schedule, time_zone, payload, headers)
            VALUES (p_queue[i], p_key[i], p_partition[i], deliver_at, v_due, p_id[i], p_transaction[i], p_trace[i], p_producer[i],
                    p_encrypted[i], p_schedule[i], p_time_zone[i], p_payload[i], p_headers[i])
            ON CONFLICT (queue_name, key) DO UPDATE
            SET partition_name = EXCLUDED.partition_name, deliver_at = EXCLUDED.deliver_at, next_attempt_at = EXCLUDED.next_attempt_at,
                message_id = EXCLUDED.message_id, transaction_id = EXCLUDED.transaction_id, trace_id = EXCLUDED.trace_id,
                producer_sub = EXCLUDED.producer_sub, is_encrypted = EXCLUDED.is_encrypted, schedule = EXCLUDED.schedule,
                time_zone = EXCLUDED.time_zone, attempts = 0, error = NULL, created_at = clock_timestamp(), payload = EXCLUDED.payload,
                headers = EXCLUDED.headers
            RETURNING t.xmax = 0 INTO v_is_new;
            became := CASE WHEN v_is_new THEN 'scheduled' ELSE 'rescheduled' END;
            transaction_id := p_transaction[i];
            message_id := p_id[i];
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
