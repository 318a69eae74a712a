-- Send a message within the caller's own transaction: it exists if and only if that commits. A server pushes it then, so its
-- place in the partition is that of the commit, not of this call. The queue and the partition are made if they are missing.
-- Returns the id of the message. A transaction id that the partition has already makes it a duplicate, which is not stored again.
-- Raises null_value_not_allowed, invalid_parameter_value or program_limit_exceeded for what cannot be a message, and QN002 for a queue
-- that demands encryption: the payload would lie in the database in clear.
-- It runs with the rights of its owner, so that a role needs no more than EXECUTE on it and USAGE on the schema.
-- Public: applications call it.
CREATE OR REPLACE FUNCTION queen.send(
    queue text, partition text, payload jsonb, transaction_id text DEFAULT NULL, trace_id uuid DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id       uuid := queen.uuid7();
    v_payload  bytea;
    v_said     text;
    v_sending  bigint;
    v_first    boolean;
BEGIN
    IF send.queue IS NULL OR send.partition IS NULL OR send.payload IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'queue, partition and payload must not be null',
            HINT = $h$A JSON null is 'null'::jsonb.$h$;
    END IF;
    IF least(length(send.queue), length(send.partition), length(send.transaction_id)) = 0
       OR greatest(length(send.queue), length(send.partition), length(send.transaction_id)) > 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'queue, partition and transaction_id must have 1 to 255 characters';
    END IF;
    v_payload := convert_to(send.payload::text, 'UTF8');
    IF length(v_payload) > 16777216 THEN
        RAISE program_limit_exceeded USING
            MESSAGE = format('the payload has %s bytes, at most 16777216 are allowed', length(v_payload));
    END IF;
    PERFORM 1 FROM queen.queues q WHERE q.name = send.queue AND q.encryption_enabled;
    IF FOUND THEN
        RAISE SQLSTATE 'QN002' USING MESSAGE = format('queue %s demands encrypted payloads', send.queue),
            HINT = 'Push to it over HTTP: only a server can encrypt.';
    END IF;

    -- Ends with the transaction, and goes back with a savepoint together with the first row. Anybody can set it, but only to a number
    -- that this session has got here is it kept: under that of another session, either's commit could fail, or not be announced.
    v_said := nullif(current_setting('queen.sending', true), '');
    v_first := true;
    IF v_said IS NOT NULL THEN
        BEGIN
            v_sending := currval('queen.outbox_sendings');
            v_first := v_said <> v_sending::text;
        EXCEPTION WHEN object_not_in_prerequisite_state THEN
            NULL;  -- the session has got none
        END;
    END IF;
    IF v_first THEN
        v_sending := nextval('queen.outbox_sendings');
        PERFORM set_config('queen.sending', v_sending::text, true);
    END IF;
    INSERT INTO queen.outbox (sending, is_first, queue_name, partition_name, message_id, transaction_id, trace_id, producer_sub, payload)
    VALUES (v_sending, v_first, send.queue, send.partition, v_id, coalesce(send.transaction_id, v_id::text), send.trace_id,
            session_user, v_payload);
    RETURN v_id;
END $$;
REVOKE EXECUTE ON FUNCTION queen.send(text, text, jsonb, text, uuid) FROM PUBLIC;
