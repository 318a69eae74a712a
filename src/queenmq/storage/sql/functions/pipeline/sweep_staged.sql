-- Remove what attempts have staged that can no longer count: those of epochs of p_sink up to p_epoch, and any of more than a day ago
-- (an attempt's id begins with its time in milliseconds). Also forgets the commits of epochs that no checkpoint goes back to, and of
-- writes without a name of more than a day ago: none of them comes again.
-- Returns the rows removed.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.sweep_staged(p_sink text, p_epoch bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_attempts bigint[];
    v_old      bigint := (extract(epoch FROM clock_timestamp() - interval '1 day') * 1000)::bigint << 22;
    v_hex      text := lpad(to_hex((extract(epoch FROM clock_timestamp() - interval '1 day') * 1000)::bigint), 12, '0');
    v_removed  bigint;
BEGIN
    WITH gone AS (
        DELETE FROM queen.pipeline_attempts WHERE (sink = p_sink AND epoch <= p_epoch) OR attempt < v_old
        RETURNING attempt
    )
    SELECT array_agg(attempt) INTO v_attempts FROM gone;
    DELETE FROM queen.pipeline_staged WHERE attempt = ANY (v_attempts) OR attempt < v_old;
    GET DIAGNOSTICS v_removed = ROW_COUNT;
    -- Those of an epoch that is decided are moved, however old they are.
    WITH gone AS (
        DELETE FROM queen.pipeline_chunks WHERE promotion IS NULL AND (attempt = ANY (v_attempts) OR attempt < v_old) RETURNING rows
    )
    SELECT v_removed + coalesce(sum(rows), 0) INTO v_removed FROM gone;
    DELETE FROM queen.pipeline_commits WHERE sink = p_sink AND epoch < p_epoch - 10000 AND promotion IS NULL;
    -- The name of their sink is a UUID of version 7, which begins with its time: one part of the index is read.
    DELETE FROM queen.pipeline_commits
    WHERE sink > 'unnamed ' AND sink < 'unnamed ' || left(v_hex, 8) || '-' || right(v_hex, 4) AND promotion IS NULL;
    RETURN v_removed;
END $$;
