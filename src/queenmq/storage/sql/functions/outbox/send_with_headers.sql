-- queen.send for a message with headers: an object whose values are strings. Returns and raises what queen.send does, and
-- invalid_parameter_value for headers that a push would refuse, too.
-- It runs with the rights of its owner, so that a role needs no more than EXECUTE on it and USAGE on the schema.
-- Public: applications call it.
CREATE OR REPLACE FUNCTION queen.send_with_headers(
    queue text, partition text, payload jsonb, headers jsonb, transaction_id text DEFAULT NULL, trace_id uuid DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id uuid;
BEGIN
    IF send_with_headers.headers IS NOT NULL THEN
        IF jsonb_typeof(send_with_headers.headers) <> 'object' THEN
            RAISE invalid_parameter_value USING MESSAGE = 'headers must be a JSON object';
        END IF;
        PERFORM 1 FROM jsonb_each(send_with_headers.headers) AS h (name, value)
        WHERE jsonb_typeof(h.value) <> 'string' OR h.name = '' OR length(h.name) > 255;
        IF FOUND THEN
            RAISE invalid_parameter_value USING MESSAGE = 'headers must have names of 1 to 255 characters and strings as values';
        END IF;
        IF (SELECT count(*) FROM jsonb_object_keys(send_with_headers.headers)) > 100 OR octet_length(send_with_headers.headers::text) > 16384 THEN
            RAISE program_limit_exceeded USING MESSAGE = 'a message has at most 100 headers, of 16384 bytes together';
        END IF;
    END IF;
    v_id := queen.send(send_with_headers.queue, send_with_headers.partition, send_with_headers.payload, send_with_headers.transaction_id,
                       send_with_headers.trace_id);
    -- What was sent last in this transaction is the message; of a session that has changed the setting it is none, or its own.
    UPDATE queen.outbox o SET headers = nullif(send_with_headers.headers, '{}')
    WHERE o.sending = current_setting('queen.sending')::bigint AND o.message_id = v_id
      AND o.position = (SELECT max(l.position) FROM queen.outbox l WHERE l.sending = current_setting('queen.sending')::bigint);
    RETURN v_id;
END $$;
REVOKE EXECUTE ON FUNCTION queen.send_with_headers(text, text, jsonb, jsonb, text, uuid) FROM PUBLIC;
