-- Lock the administration of a queue until the end of the transaction: every call that begins an operation on it, or decides that it
-- is small enough to need none, holds this, so that they come one after the other. Call it before any other lock is taken.
CREATE OR REPLACE FUNCTION queen.administer(p_queue uuid) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('administration of ' || p_queue::text, 0))
$$;
