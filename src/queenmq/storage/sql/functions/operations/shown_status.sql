-- The state of an operation as users see it: one that waits until it is retried or cancelled is blocked.
CREATE OR REPLACE FUNCTION queen.shown_status(p_status text, p_next_attempt_at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_status = 'pending' AND p_next_attempt_at = 'infinity' THEN 'blocked' ELSE p_status END
$$;
