-- Detach a table from a queue, or from all (queen.attach). What was sent before is delivered. Returns from how many queues.
-- It runs with the rights of the caller, who must own the table.
-- Public: applications call it.
-- Locks: the table, to the end of the transaction.
CREATE OR REPLACE FUNCTION queen.detach(target regclass, queue text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name   text;
    v_count  integer := 0;
BEGIN
    FOR v_name IN
        SELECT t.tgname FROM pg_trigger t
        WHERE t.tgrelid = detach.target AND t.tgfoid = 'queen.on_row_change'::regproc AND t.tgparentid = 0
          AND (detach.queue IS NULL OR t.tgname IN ('queen_' || left(md5(detach.queue), 16),
                                                    'queen_' || left(md5(detach.queue), 16) || '_truncate'))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', v_name, detach.target);
        v_count := v_count + (right(v_name, 9) <> '_truncate')::integer;
    END LOOP;
    RETURN v_count;
END $$;
