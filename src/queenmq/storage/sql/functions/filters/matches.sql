-- Whether a filter lets a message through. One that reads payloads lets those through that it cannot read: they are encrypted, or no jsonb.
CREATE OR REPLACE FUNCTION queen.matches(p_filter queen.group_filters, p_headers jsonb, p_encrypted boolean, p_payload bytea)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_payload jsonb;
BEGIN
    IF p_filter.reads_payload THEN
        IF p_encrypted THEN
            RETURN true;
        END IF;
        BEGIN
            v_payload := convert_from(p_payload, 'UTF8')::jsonb;
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
            RETURN true;
        END;
    END IF;
    RETURN coalesce(jsonb_path_match(
        jsonb_build_object('headers', coalesce(p_headers, '{}'), 'payload', v_payload), p_filter.path, '{}', true), false);
END $$;
