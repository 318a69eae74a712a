-- Attach a table to a queue: from the commit on, each change of its rows is sent there (see queen.on_row_change). Attaching it again to
-- the same queue changes the partitions and the columns that are left out. Who writes to the table needs EXECUTE on queen.send and USAGE on the
-- schema: this is refused while such a role has not, or, with grant_writers, grants it.
-- Raises wrong_object_type, object_not_in_prerequisite_state, invalid_parameter_value or insufficient_privilege.
-- It runs with the rights of the caller, who needs TRIGGER on the table and EXECUTE on queen.on_row_change.
-- Public: applications call it.
-- Locks: the table, against writers, to the end of the transaction.
CREATE OR REPLACE FUNCTION queen.attach(
    target regclass, queue text, partitions integer DEFAULT 1, exclude text[] DEFAULT '{}', grant_writers boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name       text := 'queen_' || left(md5(attach.queue), 16);
    v_arguments  text;
    v_table      record;
    v_unknown    text;
    v_writers    text;
BEGIN
    IF num_nulls(attach.target, attach.queue, attach.partitions, attach.exclude, attach.grant_writers) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'the arguments of queen.attach must not be null';
    END IF;
    IF length(attach.queue) NOT BETWEEN 1 AND 255 OR attach.partitions NOT BETWEEN 1 AND 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'queue must have 1 to 255 characters, and 1 to 1000 partitions';
    END IF;
    SELECT c.relkind, c.relispartition, n.nspname INTO STRICT v_table
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = attach.target;
    IF v_table.relkind NOT IN ('r', 'p') OR v_table.nspname IN ('queen', 'pg_catalog', 'information_schema') THEN
        RAISE wrong_object_type USING MESSAGE = format('%s cannot be attached: it is no table of an application', attach.target);
    ELSIF v_table.relispartition THEN
        RAISE wrong_object_type USING MESSAGE =
            format('%s is a partition: attach %s instead', attach.target, pg_partition_root(attach.target)::regclass);
    END IF;
    PERFORM 1 FROM pg_index WHERE indrelid = attach.target AND indisprimary;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('%s has no primary key', attach.target),
            HINT = 'A change is sent with the key of its row.';
    END IF;
    SELECT string_agg(e, ', ') INTO v_unknown FROM unnest(attach.exclude) AS e
    WHERE NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = attach.target AND a.attname = e AND a.attnum > 0);
    IF v_unknown IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s has no column %s', attach.target, v_unknown);
    END IF;
    IF has_table_privilege('queen.queues', 'SELECT') THEN
        PERFORM 1 FROM queen.queues q WHERE q.name = attach.queue AND q.encryption_enabled;
        IF FOUND THEN
            RAISE SQLSTATE 'QN002' USING MESSAGE = format('queue %s demands encrypted payloads', attach.queue),
                HINT = 'Only a server can encrypt: push to it over HTTP.';
        END IF;
    END IF;

    WITH tables AS (
        SELECT attach.target::oid AS oid UNION SELECT relid::oid FROM pg_partition_tree(attach.target)
    ), writers AS (
        SELECT c.relowner AS role FROM tables JOIN pg_class c USING (oid)
        UNION
        SELECT a.grantee FROM tables JOIN pg_class c USING (oid), aclexplode(c.relacl) a
        WHERE a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
        UNION
        SELECT a.grantee FROM tables JOIN pg_attribute t ON t.attrelid = oid, aclexplode(t.attacl) a
        WHERE a.privilege_type IN ('INSERT', 'UPDATE')
    )
    SELECT string_agg(CASE WHEN role = 0 THEN 'PUBLIC' ELSE role::regrole::text END, ', ') INTO v_writers FROM writers
    WHERE NOT has_schema_privilege(role, 'queen', 'USAGE')
       OR NOT has_function_privilege(role, 'queen.send(text, text, jsonb, text, uuid)', 'EXECUTE');
    IF v_writers IS NOT NULL AND attach.grant_writers THEN
        EXECUTE format('GRANT USAGE ON SCHEMA queen TO %s', v_writers);
        EXECUTE format('GRANT EXECUTE ON FUNCTION queen.send TO %s', v_writers);
    ELSIF v_writers IS NOT NULL THEN
        RAISE insufficient_privilege USING MESSAGE = format('who writes to %s may not send: %s', attach.target, v_writers),
            HINT = format('GRANT USAGE ON SCHEMA queen TO %s; GRANT EXECUTE ON FUNCTION queen.send TO %1$s;', v_writers);
    END IF;

    SELECT string_agg(quote_literal(a), ', ' ORDER BY n) INTO v_arguments
    FROM unnest(ARRAY[attach.queue, attach.partitions::text] || attach.exclude) WITH ORDINALITY AS t (a, n);
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION queen.on_row_change(%s)',
                   v_name, attach.target, v_arguments);
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION queen.on_row_change(%s)',
                   v_name || '_truncate', attach.target, v_arguments);
END $$;
