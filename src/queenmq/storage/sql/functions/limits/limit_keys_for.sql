-- Take what the limits of keys allow a pop of a group that has locked partitions (p_versions: their rows) and wants up to p_messages of each, under leases if
-- p_leased: `keys` has the key of each of them, in their order, `messages` a number, which is 0 if it has to be left, and `taken` is the sum of these. What is not used of
-- it is to be returned with queen.return_key_tokens; a lease that is not made does not count. `full_keys` are the keys that allow nothing more, `waits` says in how many
-- milliseconds that may change, and `by_rate` whether the end of a lease changes nothing about it. p_scopes and so on: what queen.limits_for has returned as key_….
-- Of one limit, what is taken of keys that allow everything is taken together; other keys, and those of two limits, are examined one by one.
-- Locks: rows of limit_keys, or an advisory lock if one is still to be made; never waiting.
CREATE OR REPLACE FUNCTION queen.limit_keys_for(
    p_queue uuid, p_group text, p_separator text, p_partitions uuid[], p_versions tid[], p_messages integer, p_leased boolean,
    p_scopes text[], p_leases integer[], p_rates double precision[], p_bursts double precision[],
    OUT keys text[], OUT messages integer[], OUT taken bigint, OUT full_keys text[], OUT waits double precision[], OUT by_rate boolean[])
LANGUAGE plpgsql AS $$
DECLARE
    k          record;
    s          record;
    a          record;
    v_granted  text[];      -- keys that need not be examined any more
    v_count    integer;
    v_keys     text[];      -- those whose rows are locked, and what is in these
    v_used     integer[];
    v_refilled timestamptz[];
    v_now      timestamptz;
    v_found    boolean;
    v_leases   integer;     -- partitions of the key, and messages of all of them
    v_messages bigint;
    v_wait     double precision;
    v_by_rate  boolean;
    v_taken    uuid[];
    v_version  tid;
    v_versions tid[];       -- for each scope: the row, and what is in it
    v_tokens   double precision[];
    v_at       timestamptz[];
BEGIN
    taken := 0;
    messages := array_fill(0, ARRAY[cardinality(p_partitions)]);
    SELECT array_agg(c.fair_key ORDER BY t.i) INTO keys
    FROM unnest(p_versions) WITH ORDINALITY AS t (version, i) JOIN queen.partition_consumers c ON c.ctid = t.version;
    IF array_position(keys, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(t.key, queen.fair_key(p.name, p_separator)) ORDER BY t.i) INTO keys
        FROM unnest(keys, p_partitions) WITH ORDINALITY AS t (key, id, i) JOIN queen.partitions p ON p.id = t.id;
    END IF;
    IF cardinality(p_scopes) = 1 THEN
        v_found := p_leased AND p_leases[1] IS NOT NULL;
        -- The time is read under the locks: with an earlier one, what another pop has refilled meanwhile would be refilled again.
        SELECT array_agg(y.key), array_agg(y.version), array_agg(y.partitions), array_agg(y.tokens), array_agg(y.refilled_at), array_agg(clock_timestamp())
        INTO v_keys, v_versions, v_used, v_tokens, v_refilled, v_at
        FROM (
            SELECT x.key, x.ctid AS version, cardinality(x.partitions) AS partitions, x.tokens, x.refilled_at FROM queen.limit_keys x
            WHERE x.ctid = ANY (ARRAY(
                SELECT n.version FROM (SELECT DISTINCT u.key FROM unnest(keys) AS u (key)) w
                CROSS JOIN LATERAL (
                    SELECT z.ctid AS version FROM queen.limit_keys z
                    WHERE z.queue_id = p_queue AND z.scope = p_scopes[1] AND z.key = w.key ORDER BY z.generation DESC LIMIT 1
                ) n))
            FOR NO KEY UPDATE SKIP LOCKED
        ) y;
        FOR n IN 1 .. coalesce(cardinality(v_keys), 0) LOOP
            v_count := cardinality(array_positions(keys, v_keys[n]));
            v_tokens[n] := queen.tokens_at(v_tokens[n], p_rates[1], p_bursts[1], v_refilled[n], v_at[n]) - v_count::bigint * p_messages;
            IF v_tokens[n] < 0 OR (v_found AND (v_used[n] + v_count > p_leases[1] OR (v_used[n] >= 16 AND random() * v_used[n] < 4))) THEN
                v_versions[n] := NULL;
            ELSE
                taken := taken + v_count;
                v_granted := v_granted || v_keys[n];
            END IF;
        END LOOP;
        IF taken > 0 THEN
            IF v_found THEN
                UPDATE queen.limit_keys x
                SET partitions = x.partitions || ARRAY(SELECT t.id FROM unnest(keys, p_partitions) AS t (key, id) WHERE t.key = x.key),
                    groups = x.groups || array_fill(p_group, ARRAY[cardinality(array_positions(keys, x.key))]),
                    tokens = u.tokens, refilled_at = u.refilled_at, generation = x.generation + 1
                FROM unnest(v_versions, v_tokens, v_at) AS u (version, tokens, refilled_at) WHERE x.ctid = u.version;
            ELSE
                UPDATE queen.limit_keys x SET tokens = u.tokens, refilled_at = u.refilled_at, generation = x.generation + 1
                FROM unnest(v_versions, v_tokens, v_at) AS u (version, tokens, refilled_at) WHERE x.ctid = u.version;
            END IF;
            IF taken = cardinality(keys) THEN
                taken := taken * p_messages;
                messages := array_fill(p_messages, ARRAY[cardinality(keys)]);
                RETURN;
            END IF;
            taken := taken * p_messages;
            SELECT array_agg(CASE WHEN t.key = ANY (v_granted) THEN p_messages ELSE 0 END ORDER BY t.i) INTO messages
            FROM unnest(keys) WITH ORDINALITY AS t (key, i);
        END IF;
    END IF;
    FOR k IN
        SELECT t.key, array_agg(t.i::integer) AS places FROM unnest(keys) WITH ORDINALITY AS t (key, i)
        WHERE v_granted IS NULL OR t.key <> ALL (v_granted) GROUP BY t.key
    LOOP
        v_leases := cardinality(k.places);
        v_messages := v_leases::bigint * p_messages;
        v_wait := 1;
        v_by_rate := false;
        v_versions := '{}';
        v_tokens := '{}';
        v_at := '{}';
        FOR n IN 1 .. cardinality(p_scopes) LOOP
            SELECT x.ctid AS version, x.partitions, x.groups, x.tokens, x.refilled_at INTO s FROM queen.limit_keys x
            WHERE x.ctid = (
                SELECT y.ctid FROM queen.limit_keys y
                WHERE y.queue_id = p_queue AND y.scope = p_scopes[n] AND y.key = k.key ORDER BY y.generation DESC LIMIT 1)
            FOR NO KEY UPDATE SKIP LOCKED;
            v_found := FOUND;
            IF NOT v_found AND pg_try_advisory_xact_lock(
                hashtextextended('queen.limit_keys ' || p_scopes[n] || ' ' || k.key, hashtext(p_queue::text)))
            THEN
                -- It is used for the first time, or another pop holds it.
                INSERT INTO queen.limit_keys AS x (queue_id, scope, key, generation, partitions, groups, tokens)
                SELECT p_queue, p_scopes[n], k.key, extract(epoch FROM clock_timestamp()) * 1000000, '{}', '{}', p_bursts[n]
                WHERE NOT EXISTS (SELECT 1 FROM queen.limit_keys y WHERE y.queue_id = p_queue AND y.scope = p_scopes[n] AND y.key = k.key)
                RETURNING x.ctid AS version, x.partitions, x.groups, x.tokens, x.refilled_at INTO s;
                v_found := FOUND;
            END IF;
            IF NOT v_found THEN
                v_leases := 0;
                v_wait := 5;
                EXIT;
            END IF;
            -- Under the lock: with an earlier time, what another pop has refilled meanwhile would be refilled again.
            v_now := clock_timestamp();
            v_at := v_at || v_now;
            v_version := s.version;
            -- Those that have ended are removed when it matters, and now and then: whether it is then was decided above if there is one limit.
            IF p_leased AND (cardinality(s.partitions) + v_leases > p_leases[n]
                             OR (cardinality(s.partitions) >= 16
                                 AND (cardinality(p_scopes) = 1 OR random() * cardinality(s.partitions) < 4))) THEN
                a := queen.living_leases(s.partitions, s.groups, v_now);
                IF cardinality(a.partitions) < cardinality(s.partitions) THEN
                    UPDATE queen.limit_keys x SET partitions = a.partitions, groups = a.groups, generation = x.generation + 1
                    WHERE x.ctid = v_version RETURNING x.ctid INTO v_version;
                END IF;
                IF p_leases[n] - cardinality(a.partitions) < v_leases THEN
                    v_leases := greatest(0, p_leases[n] - cardinality(a.partitions));
                    v_wait := extract(epoch FROM a.ends_at - v_now) * 1000;
                    v_by_rate := false;
                END IF;
            END IF;
            v_versions := v_versions || v_version;
            IF p_rates[n] IS NULL THEN
                v_tokens := v_tokens || NULL::double precision;
            ELSE
                v_tokens := v_tokens || queen.tokens_at(s.tokens, p_rates[n], p_bursts[n], s.refilled_at, v_now);
                IF v_tokens[n] < v_messages THEN
                    v_messages := floor(v_tokens[n] + 0.000001);
                    IF v_messages < v_leases THEN
                        -- Enough for 50 ms at once, rather than one message after the other.
                        v_wait := (least(p_messages, greatest(1, least(p_rates[n] / 20, p_bursts[n] / 2))) - v_tokens[n]) / p_rates[n] * 1000;
                        v_by_rate := true;
                    END IF;
                END IF;
            END IF;
            v_leases := least(v_leases, v_messages);
            EXIT WHEN v_leases = 0;
        END LOOP;
        IF v_leases < cardinality(k.places) THEN
            full_keys := full_keys || k.key;
            waits := waits || greatest(v_wait, 1);
            by_rate := by_rate || v_by_rate;
            CONTINUE WHEN v_leases = 0;
        END IF;
        v_messages := least(p_messages, v_messages / v_leases);
        taken := taken + v_leases * v_messages;
        v_taken := '{}';
        FOR n IN 1 .. v_leases LOOP
            messages[k.places[n]] := v_messages;
            v_taken := v_taken || p_partitions[k.places[n]];
        END LOOP;
        FOR n IN 1 .. cardinality(v_versions) LOOP
            UPDATE queen.limit_keys x
            SET partitions = CASE WHEN p_leased AND p_leases[n] IS NOT NULL THEN x.partitions || v_taken ELSE x.partitions END,
                groups = CASE WHEN p_leased AND p_leases[n] IS NOT NULL THEN x.groups || array_fill(p_group, ARRAY[v_leases]) ELSE x.groups END,
                tokens = v_tokens[n] - v_leases * v_messages, refilled_at = v_at[n], generation = x.generation + 1
            WHERE x.ctid = v_versions[n];
        END LOOP;
    END LOOP;
END $$;
