-- What the limits of a queue and of a group of it allow now to a pop that wants so many leases (none with autoAck) and messages: `leases` and
-- `messages`. If that is nothing, `wait_ms` says when to ask again, and `by_rate` whether the end of a lease changes nothing about it.
-- What is used is to be written with queen.use_limits: of `slots` and `shards`, which are locked; `tokens` are what each shard has, at the moment that `at` has for it. Those
-- of the queue's own limit come first, so many as `queue_slots` and `queue_shards` say. key_…: the limits of keys (see queen.limit_keys_for), null if there are none.
-- Locks: rows of limit_slots and limit_tokens, never waiting (SKIP LOCKED).
CREATE OR REPLACE FUNCTION queen.limits_for(
    p_queue uuid, p_group text, p_leases integer, p_messages bigint,
    OUT leases integer, OUT messages integer, OUT wait_ms double precision, OUT by_rate boolean, OUT slots tid[], OUT queue_slots integer,
    OUT shards tid[], OUT tokens double precision[], OUT queue_shards integer, OUT at timestamptz[],
    OUT key_scopes text[], OUT key_leases integer[], OUT key_rates double precision[], OUT key_bursts double precision[])
LANGUAGE plpgsql AS $$
DECLARE
    l        record;
    t        record;
    v_now    timestamptz := clock_timestamp();
    v_from   integer;
    v_free   tid[];
    v_locked tid[];
    v_tokens double precision;
    v_missed boolean;   -- another pop holds a part of it
BEGIN
    leases := p_leases;
    messages := least(p_messages, 1000000);
    queue_slots := 0;
    queue_shards := 0;
    FOR l IN
        SELECT x.consumer_group AS scope, x.leases, x.rate, x.burst, x.shards, x.key_leases, x.key_rate, x.key_burst FROM queen.limits x
        WHERE x.queue_id = p_queue AND x.consumer_group IN ('', p_group) ORDER BY x.consumer_group
    LOOP
        IF (l.key_leases IS NOT NULL AND p_leases > 0) OR l.key_rate IS NOT NULL THEN
            key_scopes := key_scopes || l.scope;
            key_leases := key_leases || l.key_leases;
            key_rates := key_rates || l.key_rate;
            key_bursts := key_bursts || l.key_burst;
        END IF;
        IF l.leases IS NOT NULL AND leases > 0 THEN
            v_from := floor(random() * l.leases);
            v_free := ARRAY(
                SELECT s.version FROM generate_series(0, l.leases - 1) AS g (n)
                CROSS JOIN LATERAL (
                    SELECT x.ctid AS version, x.partition_id, x.consumer_group, x.lease_id FROM queen.limit_slots x
                    WHERE x.queue_id = p_queue AND x.scope = l.scope AND x.slot = (v_from + g.n) % l.leases ORDER BY x.generation DESC LIMIT 1
                ) s
                WHERE NOT EXISTS (
                    SELECT 1 FROM (
                        SELECT c.lease_id, c.lease_expires_at FROM queen.partition_consumers c
                        WHERE c.partition_id = s.partition_id AND c.consumer_group = s.consumer_group ORDER BY c.generation DESC LIMIT 1
                    ) c WHERE c.lease_id = s.lease_id AND c.lease_expires_at > v_now)
                LIMIT leases);
            -- One that another pop has used since has a new version, which is not among these. OFFSET: that is asked after the lock.
            v_locked := ARRAY(
                SELECT x.version FROM (
                    SELECT s.ctid AS version FROM queen.limit_slots s WHERE s.ctid = ANY (v_free) FOR NO KEY UPDATE SKIP LOCKED OFFSET 0
                ) x WHERE x.version = ANY (v_free));
            slots := slots || v_locked;
            queue_slots := CASE WHEN l.scope = '' THEN cardinality(v_locked) ELSE queue_slots END;
            leases := least(leases, cardinality(v_locked));
            IF leases = 0 THEN
                messages := 0;
                by_rate := false;
                wait_ms := 5;
                IF cardinality(v_free) = 0 THEN
                    SELECT coalesce(extract(epoch FROM min(c.lease_expires_at) - v_now) * 1000, 5) INTO wait_ms
                    FROM generate_series(0, l.leases - 1) AS g (n)
                    CROSS JOIN LATERAL (
                        SELECT x.partition_id, x.consumer_group, x.lease_id FROM queen.limit_slots x
                        WHERE x.queue_id = p_queue AND x.scope = l.scope AND x.slot = g.n ORDER BY x.generation DESC LIMIT 1
                    ) s
                    CROSS JOIN LATERAL (
                        SELECT y.lease_id, y.lease_expires_at FROM queen.partition_consumers y
                        WHERE y.partition_id = s.partition_id AND y.consumer_group = s.consumer_group ORDER BY y.generation DESC LIMIT 1
                    ) c
                    WHERE c.lease_id = s.lease_id;
                END IF;
                RETURN;
            END IF;
        END IF;
        IF l.rate IS NOT NULL THEN
            v_tokens := 0;
            v_missed := false;
            v_from := floor(random() * l.shards);
            FOR v_shard IN 0 .. l.shards - 1 LOOP
                SELECT x.ctid AS version, x.tokens, x.refilled_at INTO t FROM queen.limit_tokens x
                WHERE x.ctid = (
                    SELECT n.ctid FROM queen.limit_tokens n
                    WHERE n.queue_id = p_queue AND n.scope = l.scope AND n.shard = (v_from + v_shard) % l.shards ORDER BY n.generation DESC LIMIT 1)
                FOR NO KEY UPDATE SKIP LOCKED;
                IF FOUND THEN
                    -- Under the lock: with an earlier time, what another pop has refilled meanwhile would be refilled again.
                    v_now := clock_timestamp();
                    t.tokens := queen.tokens_at(t.tokens, l.rate / l.shards, l.burst / l.shards, t.refilled_at, v_now);
                    shards := shards || t.version;
                    tokens := tokens || t.tokens;
                    at := at || v_now;
                    queue_shards := CASE WHEN l.scope = '' THEN queue_shards + 1 ELSE queue_shards END;
                    v_tokens := v_tokens + t.tokens;
                    EXIT WHEN v_tokens >= messages;
                ELSE
                    v_missed := true;
                END IF;
            END LOOP;
            messages := least(messages, floor(v_tokens + 0.000001));
            IF messages = 0 THEN
                leases := 0;
                by_rate := true;
                -- Enough for 50 ms at once, rather than one message after the other.
                wait_ms := CASE WHEN v_missed THEN 5
                                ELSE (least(p_messages, greatest(1, least(l.rate / 20, l.burst / 2))) - v_tokens) / l.rate * 1000 END;
                RETURN;
            END IF;
        END IF;
    END LOOP;
    leases := least(leases, messages);
END $$;
