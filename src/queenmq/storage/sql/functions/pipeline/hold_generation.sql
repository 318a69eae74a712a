-- Let the transaction go on only if this is the newest generation of the pipeline, and keep it the newest until the transaction ends: who takes the
-- pipeline over, or starts it again, waits for that. Raises QN010 otherwise: a driver that was paused, cut off or given up publishes nothing any more.
-- Locks: the row of the lease (FOR KEY SHARE), which renewals do not wait for. Take it before anything else.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.hold_generation(p_name text, p_generation bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM queen.pipeline_leases l WHERE l.name = p_name AND l.generation = p_generation FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE SQLSTATE 'QN010' USING MESSAGE = format('generation %s of pipeline %s is not the newest', p_generation, p_name);
    END IF;
    RETURN true;
END $$;
