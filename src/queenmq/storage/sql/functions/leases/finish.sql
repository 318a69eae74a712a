-- Acknowledge what a lease has delivered within the caller's own transaction: it is finished if and only if that commits. With
-- message_id only that message of the lease, else everything of it that is not finished. Returns how many messages that was.
-- The error is cut to 2,000 characters.
-- Fenced like every acknowledgement: raises QN009 if the lease has ended or has no such message, so that the caller's transaction
-- cannot commit what another consumer does again. Once it has finished something, nobody else gets the rest while the transaction is open, because the row is locked;
-- but a lease that has expired meanwhile cannot be finished any further.
-- It runs with the rights of its owner, so that a role needs no more than EXECUTE on it and USAGE on the schema; who knows the id of a
-- lease may finish it. The servers are notified at the commit, unless the session says `SET queen.announce = off`.
-- Public: applications call it.
-- Locks: as queen.finish_leases, to the end of the transaction.
CREATE OR REPLACE FUNCTION queen.finish(
    lease uuid, message_id uuid DEFAULT NULL, status text DEFAULT 'completed', error text DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_count  integer := 0;
    r        record;
    v_error  text := left(finish.error, 2000);
BEGIN
    IF finish.status IS NULL OR finish.status NOT IN ('completed', 'success', 'failed', 'dlq', 'retry') THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%L is no status', finish.status),
            HINT = 'It is one of completed, failed, retry and dlq.';
    END IF;
    FOR r IN
        SELECT f.problem, f.queue_name, f.finished_in AS partition_name, f.consumer_group, f.messages
        FROM queen.finish_leases(ARRAY[finish.lease], ARRAY[finish.status], ARRAY[v_error]) f
        WHERE finish.message_id IS NULL
        UNION ALL
        SELECT a.problem, a.queue_name, a.partition_name, a.consumer_group, 1
        FROM (
            SELECT array_agg(m.partition_id) AS parts, array_agg(m.transaction_id) AS names, array_agg(c.consumer_group) AS groups
            FROM queen.partition_consumers c
            CROSS JOIN LATERAL (
                -- In their order: the planner takes the index of offsets, also if it believes that the table is empty.
                SELECT x.id, x.partition_id, x.transaction_id, x."offset" FROM queen.messages x
                WHERE x.partition_id = c.partition_id
                  AND x."offset" >= lower(c.lease_offsets) AND x."offset" < upper(c.lease_offsets)
                ORDER BY x."offset" OFFSET 0
            ) m
            WHERE c.lease_id = finish.lease AND m.id = finish.message_id AND c.lease_offsets @> m."offset"
        ) t, LATERAL queen.ack(t.parts, t.names, t.groups, ARRAY[finish.lease], ARRAY[finish.status], ARRAY[v_error]) a
        WHERE t.parts IS NOT NULL
    LOOP
        IF r.problem IS NOT NULL THEN
            RAISE SQLSTATE 'QN009' USING MESSAGE = format('the message cannot be finished: %s', r.problem);
        END IF;
        v_count := v_count + r.messages;
        IF current_setting('queen.announce', true) IS DISTINCT FROM 'off'
           AND pg_try_advisory_xact_lock(hashtextextended('queen_finished', hashtext(finish.lease::text) & 3)) THEN
            PERFORM pg_notify('queen_finished', json_build_array(r.queue_name, r.partition_name, r.consumer_group)::text);
        END IF;
    END LOOP;
    IF v_count = 0 THEN
        RAISE SQLSTATE 'QN009' USING MESSAGE = format('lease %s has ended, or has no such message', finish.lease),
            HINT = 'The messages are delivered again, or were finished by somebody else: roll back.';
    END IF;
    RETURN v_count;
END $$;
REVOKE EXECUTE ON FUNCTION queen.finish(uuid, uuid, text, text) FROM PUBLIC;
