-- Send each change of a row of an attached table (queen.attach) within the transaction that makes it, as JSON:
--     {"op": "insert", "schema": …, "table": …, "key": {…}, "row": {…}}
-- An "update" has the former values of what it has changed in "old"; a "delete" has the row that was deleted; a "truncate" has neither
-- key nor row. An update that changes nothing is not sent, and one that changes the key is a delete and an insert. The name is that of
-- the partitioned table if the row is in a partition. A row that is too large for a message is left out ("row": null, "omitted": true).
-- Arguments: the queue, the number of its partitions, then columns that are left out, which are not even converted. All changes of a
-- key have one partition, 0 to n - 1, also of a number that is written with other zeros at its end; a truncate goes to each.
-- It runs with the rights of the session, because the types of a table may bring functions with them; so who writes to the table needs
-- EXECUTE on queen.send. The settings make the JSON of a row the same in every session.
CREATE OR REPLACE FUNCTION queen.on_row_change() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'iso_8601'
SET bytea_output = 'hex' SET extra_float_digits = 1 AS $$
DECLARE
    v_place      jsonb;
    v_key        text[];
    v_columns    text;
    v_old        jsonb;
    v_new        jsonb;
    v_old_key    jsonb;
    v_new_key    jsonb;
    v_changed    jsonb;
    v_changes    jsonb[];
    v_change     jsonb;
    v_partition  text;
BEGIN
    IF TG_TABLE_SCHEMA = 'queen' THEN
        RAISE insufficient_privilege USING MESSAGE = 'a table of Queen cannot be attached: each message would send another';
    END IF;
    SELECT jsonb_build_object('schema', n.nspname, 'table', c.relname) INTO v_place
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = coalesce(pg_partition_root(TG_RELID), TG_RELID);
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM queen.send(TG_ARGV[0], n::text, v_place || '{"op": "truncate"}') FROM generate_series(0, TG_ARGV[1]::integer - 1) AS n;
        RETURN NULL;
    END IF;

    SELECT array_agg(a.attname::text) INTO v_key
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::smallint[])
    WHERE i.indrelid = TG_RELID AND i.indisprimary;
    IF v_key IS NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('%s is attached to queue %s and has no primary key any more',
            TG_RELID::regclass, TG_ARGV[0]), HINT = 'Add one, or call queen.detach.';
    END IF;
    IF TG_NARGS > 2 THEN
        SELECT string_agg(format('($1).%I', a.attname), ', ') INTO v_columns FROM pg_attribute a
        WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped AND (a.attname <> ALL (TG_ARGV[2:]) OR a.attname = ANY (v_key));
        v_columns := format('SELECT to_jsonb(r) FROM (SELECT %s) AS r', v_columns);
    END IF;
    IF TG_OP <> 'INSERT' THEN
        IF v_columns IS NULL THEN
            v_old := to_jsonb(OLD);
        ELSE
            EXECUTE v_columns INTO v_old USING OLD;
        END IF;
        SELECT jsonb_object_agg(k, v_old -> k) INTO v_old_key FROM unnest(v_key) AS k;
        v_old := v_old - TG_ARGV[2:];
    END IF;
    IF TG_OP <> 'DELETE' THEN
        IF v_columns IS NULL THEN
            v_new := to_jsonb(NEW);
        ELSE
            EXECUTE v_columns INTO v_new USING NEW;
        END IF;
        SELECT jsonb_object_agg(k, v_new -> k) INTO v_new_key FROM unnest(v_key) AS k;
        v_new := v_new - TG_ARGV[2:];
    END IF;

    IF TG_OP = 'UPDATE' AND v_old_key = v_new_key THEN
        SELECT jsonb_object_agg(o.key, o.value) INTO v_changed FROM jsonb_each(v_old) o WHERE o.value IS DISTINCT FROM v_new -> o.key;
        IF v_changed IS NULL THEN
            RETURN NULL;
        END IF;
        v_changes := ARRAY[jsonb_build_object('op', 'update', 'key', v_new_key, 'row', v_new, 'old', v_changed)];
    ELSIF TG_OP = 'UPDATE' THEN
        v_changes := ARRAY[jsonb_build_object('op', 'delete', 'key', v_old_key, 'row', v_old),
                           jsonb_build_object('op', 'insert', 'key', v_new_key, 'row', v_new)];
    ELSE
        v_changes := ARRAY[jsonb_build_object('op', lower(TG_OP), 'key', coalesce(v_new_key, v_old_key), 'row', coalesce(v_new, v_old))];
    END IF;
    FOREACH v_change IN ARRAY v_changes LOOP
        v_change := v_place || v_change;
        -- As JSON a value may have six times its bytes: only a large one is measured.
        IF pg_column_size(v_change) > 2097152 AND octet_length(v_change::text) > 16777216 THEN
            v_change := v_change - 'old' || '{"row": null, "omitted": true}';
        END IF;
        v_partition := '0';
        IF TG_ARGV[1] <> '1' THEN
            SELECT abs(hashtextextended(jsonb_object_agg(k.key, CASE jsonb_typeof(k.value)
                WHEN 'number' THEN to_jsonb(trim_scale(k.value::numeric)) ELSE k.value END)::text, 0) % TG_ARGV[1]::integer)
            INTO v_partition FROM jsonb_each(v_change -> 'key') AS k;
        END IF;
        PERFORM queen.send(TG_ARGV[0], v_partition, v_change);
    END LOOP;
    RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION queen.on_row_change() FROM PUBLIC;
