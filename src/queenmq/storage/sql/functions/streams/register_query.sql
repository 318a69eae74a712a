-- Make a query of a stream engine, or find it again. Another configuration is refused (mismatch) unless p_reset: then its state is
-- forgotten. Where the query reads and writes is only noted. Locks: the query's row.
CREATE OR REPLACE FUNCTION queen.register_query(
    p_name text, p_source text, p_sink text, p_hash text, p_reset boolean,
    OUT query_id uuid, OUT config_hash text, OUT fresh boolean, OUT was_reset boolean, OUT mismatch boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    fresh := false;
    was_reset := false;
    mismatch := false;
    INSERT INTO queen.stream_queries (name, source_queue, sink_queue, config_hash) VALUES (p_name, p_source, p_sink, p_hash)
    ON CONFLICT (name) DO NOTHING RETURNING id INTO query_id;
    config_hash := p_hash;
    IF query_id IS NOT NULL THEN
        fresh := true;
        RETURN;
    END IF;
    SELECT q.id, q.config_hash INTO query_id, config_hash FROM queen.stream_queries q WHERE q.name = p_name FOR NO KEY UPDATE;
    IF config_hash <> p_hash THEN
        IF NOT p_reset THEN
            mismatch := true;
            RETURN;
        END IF;
        DELETE FROM queen.stream_state s WHERE s.query_id = register_query.query_id;
        was_reset := true;
        config_hash := p_hash;
    END IF;
    UPDATE queen.stream_queries q
    SET source_queue = p_source, sink_queue = p_sink, config_hash = p_hash, updated_at = clock_timestamp()
    WHERE q.id = query_id;
END $$;
