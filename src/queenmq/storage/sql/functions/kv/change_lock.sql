-- One operation on a lock with p_limit permits: `acquire` one that is free, or the one that p_owner has; `renew` or `release` the one of
-- p_slot, if its fencing number is still p_token.
-- Returns whether that was done, the permit with its number, and whether p_owner had it before. Locks: as queen.lock_keys.
CREATE OR REPLACE FUNCTION queen.change_lock(
    p_change text, p_name text, p_owner text, p_ttl_s bigint, p_limit integer, p_slot integer, p_token bigint,
    OUT done boolean, OUT slot integer, OUT token bigint, OUT owner text, OUT already boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_namespace text := 'lock:' || p_name;
    v_now       timestamptz;
    v_since     text;
BEGIN
    -- One for all permits, because any of them may be taken.
    PERFORM queen.lock_keys(ARRAY[v_namespace], ARRAY['']);
    v_now := clock_timestamp();
    IF p_change = 'acquire' THEN
        SELECT s.slot, k.value ->> 'since' INTO slot, v_since FROM generate_series(0, p_limit - 1) AS s (slot)
        LEFT JOIN queen.kv k ON k.namespace = v_namespace AND k.key = s.slot::text AND (k.expires_at IS NULL OR k.expires_at > v_now)
        WHERE k.key IS NULL OR k.value ->> 'owner' = p_owner
        ORDER BY k.key IS NULL, s.slot LIMIT 1;
        already := v_since IS NOT NULL;
        owner := p_owner;
    ELSE
        SELECT p_slot, k.value ->> 'since', k.value ->> 'owner' INTO slot, v_since, owner FROM queen.kv k
        WHERE k.namespace = v_namespace AND k.key = p_slot::text AND k.version = p_token AND k.expires_at > v_now;
    END IF;
    done := slot IS NOT NULL;
    IF NOT done THEN
        RETURN;
    END IF;
    -- What checks or changes the permit as a key waits for this, and this for it.
    PERFORM queen.lock_keys(ARRAY[v_namespace], ARRAY[slot::text]);
    IF p_change = 'release' THEN
        DELETE FROM queen.kv k WHERE k.namespace = v_namespace AND k.key = slot::text;
        RETURN;
    END IF;
    INSERT INTO queen.kv AS k (namespace, key, version, expires_at, updated_at, value)
    VALUES (v_namespace, slot::text, nextval('queen.kv_versions'), v_now + p_ttl_s * interval '1 second', v_now,
            json_build_object('owner', owner, 'since', coalesce(v_since, queen.kv_time(v_now))))
    ON CONFLICT (namespace, key) DO UPDATE
    SET version = excluded.version, expires_at = excluded.expires_at, updated_at = excluded.updated_at, value = excluded.value
    RETURNING k.version INTO token;
END $$;
