-- One change of one key, which is locked (queen.lock_keys): `put` (if p_expected is null or holds), `incr` (by p_delta, within p_min and
-- p_max), `delete` or `check` (of p_expected). An expected version of 0 means that there must be no such key.
-- p_ttl_s is how long the value lives, null for ever; a counter that is there keeps its end.
-- Returns whether it was applied and, if not, why: version, absent, exists, limit or type; and what is there afterwards.
CREATE OR REPLACE FUNCTION queen.change_key(
    p_change text, p_namespace text, p_key text, p_value json, p_ttl_s bigint, p_expected bigint, p_delta bigint, p_min bigint, p_max bigint,
    OUT applied boolean, OUT reason text, OUT version bigint, OUT value json, OUT expires_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_row  queen.kv;
    v_now  timestamptz := clock_timestamp();
    v_sum  numeric;
    v_ends timestamptz := v_now + p_ttl_s * interval '1 second';
BEGIN
    SELECT * INTO v_row FROM queen.kv k
    WHERE k.namespace = p_namespace AND k.key = p_key AND (k.expires_at IS NULL OR k.expires_at > v_now);
    reason := CASE
        WHEN p_expected = 0 AND v_row.key IS NOT NULL THEN 'exists'
        WHEN p_expected > 0 AND v_row.key IS NULL THEN 'absent'
        WHEN p_expected > 0 AND v_row.version <> p_expected THEN 'version'
        WHEN p_change = 'delete' AND v_row.key IS NULL THEN 'absent' END;
    IF p_change = 'incr' THEN
        IF v_row.key IS NOT NULL AND v_row.value::text !~ '^-?[0-9]{1,18}$' THEN
            reason := 'type';
        ELSE
            v_sum := coalesce(v_row.value::text, '0')::numeric + p_delta;
            IF v_sum < p_min OR v_sum > p_max OR abs(v_sum) >= 1e18 THEN
                reason := 'limit';
            END IF;
            p_value := v_sum::text::json;
            v_ends := CASE WHEN v_row.key IS NULL THEN v_ends ELSE v_row.expires_at END;
        END IF;
    END IF;
    applied := reason IS NULL;
    IF applied AND p_change IN ('put', 'incr') THEN
        INSERT INTO queen.kv AS k (namespace, key, version, expires_at, updated_at, value)
        VALUES (p_namespace, p_key, nextval('queen.kv_versions'), v_ends, v_now, p_value)
        ON CONFLICT (namespace, key) DO UPDATE
        SET version = excluded.version, expires_at = excluded.expires_at, updated_at = excluded.updated_at, value = excluded.value
        RETURNING * INTO v_row;
    ELSIF applied AND p_change = 'delete' THEN
        DELETE FROM queen.kv k WHERE k.namespace = p_namespace AND k.key = p_key;
        RETURN;
    END IF;
    version := v_row.version;
    value := v_row.value;
    expires_at := v_row.expires_at;
END $$;
