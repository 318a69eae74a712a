-- Apply changes of keys, given as parallel arrays (see queen.change_key), in their order, and return a row for each.
-- A change that p_required names and that is not applied raises QN011, with its number (from 0), the reason and the version as its
-- detail: nothing is applied then. (No value, which would get into the log of PostgreSQL.) Locks: as queen.lock_keys, then rows of kv.
CREATE OR REPLACE FUNCTION queen.change_keys(
    p_change text[], p_namespace text[], p_key text[], p_value json[], p_ttl_s bigint[], p_expected bigint[], p_delta bigint[],
    p_min bigint[], p_max bigint[], p_required boolean[])
RETURNS TABLE (i integer, applied boolean, reason text, version bigint, value json, expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c record;
BEGIN
    PERFORM queen.lock_keys(p_namespace, p_key);
    FOR i IN 1 .. cardinality(p_change) LOOP
        c := queen.change_key(p_change[i], p_namespace[i], p_key[i], p_value[i], p_ttl_s[i], p_expected[i], p_delta[i], p_min[i], p_max[i]);
        IF p_required[i] AND NOT c.applied THEN
            RAISE SQLSTATE 'QN011' USING MESSAGE = format('the condition on key %L does not hold: %s', p_key[i], c.reason),
                DETAIL = json_build_object('index', i - 1, 'reason', c.reason, 'version', c.version)::text;
        END IF;
        RETURN QUERY SELECT i, c.applied, c.reason, c.version, c.value, c.expires_at;
    END LOOP;
END $$;
