-- Claim partitions for a merged batch of pops and return their messages.
-- The arrays run in parallel, one element a request; a null partition means any. A request gets up to p_batch messages
-- from up to p_partitions partitions, under its own lease, or consumed at once with p_auto_ack.
-- A returned row has all messages of a request from one partition, in order, so that nobody has to touch them one by one: `glued` is their
-- JSON without what is the same for all of them (lease, group, queue and partition) and without the closing brace, with the character 1E
-- between them, which no JSON has. If `has_sealed`, some are encrypted: these have `isEncrypted`, and their data is a string of the
-- hexadecimal digits of the payload.
-- Payloads are bounded: a request gets fewer messages rather than more than about p_answer_bytes, but one at least, and so
-- does the whole call with p_bytes. What is left out is not leased and stays where it is, in its order. The usual statement
-- only checks whether all that it would deliver is within its share of the bounds; if not, it delivers nothing, and one
-- partition is served with as many messages as fit.
-- A returned row without a message is about a request that got nothing: with ready_in_ms, something may be there after that
-- time (a lease ends, a delay or window ripens; negative: at once, but the call was full); without, its group is not
-- subscribed yet: call queen.subscribe, then pop again. A request that got nothing and has no row waits for a push; or, if it
-- is for any partition, for something that will be there in more than two seconds: who waits asks again before that. If ready_in_ms is
-- infinite, what it asks for is paused (see queen.pause). If message_count is 0, a limit allows nothing before that time (see queen.limits_for);
-- has_sealed says then whether that is a rate; partition_name is the key whose limit it is (see queen.limit_keys_for), if it is one of a key: other keys may
-- have something then, and the request may have got it. A request for any partition may name a key (p_key), of whose partitions it gets one that is ready, if there
-- is one (see queen.set_fairness). Of a group with a filter, what that does not let through is passed over, and of one that conflates all but the
-- newest.
-- Locks: rows of partition_consumers, exactly those that it claims, never waiting (SKIP LOCKED): nothing that another
-- pop could deliver is hidden from it. Then what queen.settle takes. Before, where there are limits, what queen.limits_for takes.
CREATE OR REPLACE FUNCTION queen.pop(
    p_queue text[], p_partition text[], p_group text[], p_batch integer[], p_partitions integer[],
    p_auto_ack boolean[], p_lease uuid[], p_answer_bytes bigint DEFAULT 16777216, p_bytes bigint DEFAULT 33554432,
    p_key text[] DEFAULT NULL)
RETURNS TABLE (request integer, partition_id uuid, partition_name text, message_count integer, glued bytea, has_sealed boolean,
               first_created_at timestamptz, ready_in_ms double precision)
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    r          record;
    v_queue    queen.queues;
    v_only     uuid;
    v_now      timestamptz;
    v_next     integer;     -- the request of this group that is served next
    v_left     integer;     -- messages it may still get
    v_parts    integer;     -- partitions it may still claim
    v_want     integer;
    v_ids      uuid[];
    v_versions tid[];       -- the newest versions of their rows, which are locked
    v_left_off boolean;     -- some of them have leases, which have ended without a word
    v_unserved integer;
    v_found    integer;     -- partitions that the walk has found
    v_first    integer;     -- of these, the first that has something to read
    v_empty    uuid[];
    v_passed   uuid[];      -- nothing is there for the group, and they could not be put to sleep (see queen.settle)
    v_held     uuid[];
    v_ready    timestamptz;
    v_reached  timestamptz;
    v_rows     integer;
    v_limit    integer;     -- messages of one partition
    v_most     integer;     -- the same, before bytes are counted
    v_share    bigint;      -- bytes that one partition may have without being counted
    v_room     bigint;      -- bytes that the request may still get, of those that are counted
    v_spent    bigint := 0; -- bytes of the call that were counted
    v_bytes    bigint;
    v_counted  boolean;
    v_walked   timestamptz;
    v_stopped  boolean;
    v_paused   uuid[];      -- partitions that are paused for the group
    v_probes   boolean;     -- only one request is served, to see whether its messages fail (see queen.note_outcomes)
    v_moved    timestamptz; -- when the floor of the group was moved
    v_began    timestamptz;
    v_filter   queen.group_filters;
    v_conflates boolean;    -- the group gets only the newest message of each partition
    v_upto     bigint[];    -- with either: how far the messages of each partition were examined
    v_fitting    integer[];   -- and how many of them the group gets
    v_allowed  record;      -- what the limits of the queue and the group allow, less what was used of it
    v_used     integer;     -- messages
    v_leased   uuid[];      -- partitions
    v_leases   uuid[];      -- and their leases
    v_keyed    uuid[];      -- partitions that were taken because of their key
    v_others   tid[];
    v_abandoned boolean;    -- some of these have leases that have ended without a word
    v_refused  text[];      -- queues and groups to which limits have allowed nothing in this call
    v_waits    double precision[];
    v_rates    boolean[];
    v_by_key   boolean;     -- there are limits of keys
    v_keys     record;      -- what the limits of keys allow
    v_taken    bigint;      -- messages that they have allowed
    v_granted  uuid[];      -- the partitions for which they were asked
    v_shares   integer[];   -- with limits of keys: messages of each partition
    v_counts   integer[];   -- messages that were delivered of each partition
    v_before   integer;
    v_full     text[];      -- keys whose limits allow nothing more
    v_soonest  text;        -- the one of them that may have something first
    v_full_ms  double precision;    -- and when
    v_by_rate  boolean;     -- and whether that is because of its rate
    v_rest     integer;     -- partitions that are still wanted, whatever their key
    v_over     uuid[];      -- and those that are stepped over meanwhile
    v_until    timestamptz := clock_timestamp() + interval '50 ms';     -- no filter is evaluated beyond that, so that others do not wait
BEGIN
    FOR r IN
        SELECT t.queue, t.partition, t.grp, t.batch, t.parts, t.auto_ack,
               array_agg(t.i::integer ORDER BY t.i) AS requests, array_agg(t.lease ORDER BY t.i) AS leases,
               CASE WHEN p_key IS NOT NULL THEN array_agg(t.key ORDER BY t.i) END AS keys
        FROM unnest(p_queue, p_partition, p_group, p_batch, p_partitions, p_auto_ack, p_lease, p_key)
             WITH ORDINALITY AS t (queue, partition, grp, batch, parts, auto_ack, lease, key, i)
        GROUP BY t.queue, t.partition, t.grp, t.batch, t.parts, t.auto_ack
        ORDER BY min(t.i)
    LOOP
        SELECT * INTO v_queue FROM queen.queues q WHERE q.name = r.queue;
        v_only := NULL;
        IF r.partition IS NULL THEN
            SELECT f.floor, f.moved_at INTO v_reached, v_moved FROM queen.consumer_groups g
            LEFT JOIN LATERAL (
                SELECT x.floor, x.moved_at FROM queen.ready_floors x
                WHERE x.queue_id = v_queue.id AND x.consumer_group = r.grp ORDER BY x.generation DESC LIMIT 1
            ) f ON true
            WHERE g.queue_name = r.queue AND g.name = r.grp AND (g.registered OR g.placed_upto IS NOT NULL) AND v_queue.id IS NOT NULL;
        ELSE
            SELECT p.id INTO v_only
            FROM queen.partitions p
            CROSS JOIN LATERAL (
                SELECT 1 FROM queen.partition_consumers c
                WHERE c.partition_id = p.id AND c.consumer_group = r.grp ORDER BY c.generation DESC LIMIT 1
            ) c
            WHERE p.queue_id = v_queue.id AND p.name = r.partition;
        END IF;
        IF NOT FOUND THEN
            RETURN QUERY SELECT t.i, NULL::uuid, NULL, NULL::integer, NULL::bytea, NULL::boolean, NULL::timestamptz,
                                NULL::double precision
                         FROM unnest(r.requests) AS t (i);
            CONTINUE;
        END IF;

        v_paused := NULL;
        v_probes := false;
        IF v_queue.has_pauses OR v_queue.has_policies THEN
            SELECT f.everything OR coalesce(v_only = ANY (f.partitions), false), f.partitions, f.probes INTO v_stopped, v_paused, v_probes
            FROM queen.paused_for(v_queue.id, r.grp) f;
            IF v_probes AND NOT v_stopped THEN
                PERFORM 1 FROM queen.breakers b
                WHERE b.queue_id = v_queue.id AND b.consumer_group = r.grp AND b.opened_at IS NOT NULL AND b.probe_at <= clock_timestamp()
                FOR NO KEY UPDATE SKIP LOCKED;
                v_stopped := NOT FOUND OR r.auto_ack;
            END IF;
            IF v_stopped OR v_probes THEN
                RETURN QUERY SELECT t.i, NULL::uuid, NULL, NULL::integer, NULL::bytea, NULL::boolean, NULL::timestamptz,
                                    'Infinity'::double precision
                             FROM unnest(CASE WHEN v_stopped THEN r.requests ELSE r.requests[2:] END) AS t (i);
                CONTINUE WHEN v_stopped;
                r.requests := r.requests[1:1];
                r.parts := 1;
            END IF;
        END IF;

        v_filter := NULL;
        v_upto := NULL;
        IF v_queue.has_filters THEN
            SELECT * INTO v_filter FROM queen.group_filters f WHERE f.queue_id = v_queue.id AND f.consumer_group = r.grp;
        END IF;

        v_conflates := v_queue.has_conflation AND queen.conflates(v_queue.id, r.grp);
        v_by_key := false;
        v_shares := NULL;
        v_full := NULL;
        IF v_queue.has_limits THEN
            -- There may be thousands of partitions that somebody waits for by name.
            v_before := array_position(v_refused, concat(v_queue.id, r.auto_ack, r.grp));
            IF v_before IS NOT NULL THEN
                RETURN QUERY SELECT t.i, NULL::uuid, NULL, 0, NULL::bytea, v_rates[v_before], NULL::timestamptz, v_waits[v_before]
                             FROM unnest(r.requests) AS t (i);
                CONTINUE;
            END IF;
            v_allowed := queen.limits_for(
                v_queue.id, r.grp, CASE WHEN r.auto_ack THEN 0 ELSE cardinality(r.requests) * least(r.parts, r.batch) END,
                cardinality(r.requests)::bigint * r.batch);
            IF v_allowed.messages = 0 OR (v_allowed.leases = 0 AND NOT r.auto_ack) THEN
                v_refused := v_refused || concat(v_queue.id, r.auto_ack, r.grp);
                v_waits := v_waits || coalesce(v_allowed.wait_ms, 1)::double precision;
                v_rates := v_rates || coalesce(v_allowed.by_rate, false);
            END IF;
            -- A server of the version before can take the rule back that says what keys are.
            v_by_key := v_allowed.key_scopes IS NOT NULL AND v_queue.fair_separator IS NOT NULL;
            v_used := 0;
            v_leased := '{}';
            v_leases := '{}';
            v_counts := '{}';
        END IF;

        v_now := clock_timestamp();
        IF r.partition IS NOT NULL OR v_reached IS NULL THEN
            v_reached := '-infinity';
        ELSIF v_reached > v_now OR v_moved NOT BETWEEN v_now - interval '1 minute' AND v_now THEN
            v_reached := queen.move_ready_floor(v_queue.id, r.grp);
            v_moved := v_now;
        END IF;
        v_passed := NULL;
        v_next := 1;
        v_left := r.batch;
        v_parts := r.parts;
        v_room := p_answer_bytes;
        v_share := p_bytes / (cardinality(p_queue) * least(r.parts, r.batch)::bigint);
        WHILE v_next <= cardinality(r.requests) AND v_spent < p_bytes LOOP
            v_want := CASE WHEN r.parts = 1 THEN cardinality(r.requests) - v_next + 1 ELSE 1 END;
            v_counted := false;
            v_most := v_left;
            IF v_queue.has_limits THEN
                EXIT WHEN v_allowed.messages = 0 OR (v_allowed.leases = 0 AND NOT r.auto_ack);
                v_want := least(v_want, v_allowed.messages, CASE WHEN NOT r.auto_ack THEN v_allowed.leases END);
                v_most := least(v_left, v_allowed.messages / v_want);
            END IF;
            v_limit := v_most;
            v_walked := v_reached;
            IF v_only IS NULL THEN
                v_began := clock_timestamp();
                v_keyed := NULL;
                v_rest := v_want;
                IF r.keys IS NOT NULL THEN
                    SELECT array_agg(x.partition_id), array_agg(x.version), v_want - count(*), bool_or(x.lease_id IS NOT NULL)
                    INTO v_keyed, v_others, v_rest, v_abandoned
                    FROM (
                        SELECT t.key, count(*) AS n FROM unnest(r.keys[v_next : v_next + v_want - 1]) AS t (key)
                        WHERE v_full IS NULL OR t.key <> ALL (v_full) GROUP BY t.key
                    ) k
                    CROSS JOIN LATERAL (
                        SELECT c.partition_id, c.lease_id, c.ctid AS version FROM queen.partition_consumers c
                        WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp AND c.fair_key = k.key
                          AND c.ready_at >= v_reached AND c.ready_at <= v_now
                          AND (v_passed IS NULL OR c.partition_id <> ALL (v_passed))
                          AND (v_paused IS NULL OR c.partition_id <> ALL (v_paused))
                        ORDER BY c.ready_at LIMIT k.n FOR NO KEY UPDATE SKIP LOCKED
                    ) x;
                END IF;
                v_over := v_passed || v_keyed;
                v_ids := NULL;
                v_versions := NULL;
                v_left_off := false;
                IF v_rest > 0 AND v_full IS NOT NULL THEN
                    -- Those that have waited longest may all be of keys that are full: from key to key, so that they are not stepped over one by one.
                    WITH RECURSIVE k AS (
                        (SELECT c.fair_key, 1 AS n FROM queen.partition_consumers c
                         WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp AND c.fair_key >= '' AND c.ready_at >= v_reached
                         ORDER BY c.fair_key LIMIT 1)
                        UNION ALL
                        SELECT c.fair_key, k.n + 1 FROM k
                        CROSS JOIN LATERAL (
                            SELECT x.fair_key FROM queen.partition_consumers x
                            WHERE x.queue_id = v_queue.id AND x.consumer_group = r.grp AND x.fair_key > k.fair_key AND x.ready_at >= v_reached
                            ORDER BY x.fair_key LIMIT 1
                        ) c WHERE k.n < 200
                    )
                    SELECT array_agg(x.partition_id), array_agg(x.version), bool_or(x.lease_id IS NOT NULL) INTO v_ids, v_versions, v_left_off
                    FROM (
                        SELECT x.* FROM k
                        CROSS JOIN LATERAL (
                            SELECT c.partition_id, c.lease_id, c.ctid AS version FROM queen.partition_consumers c
                            WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp AND c.fair_key = k.fair_key
                              AND c.ready_at >= v_reached AND c.ready_at <= v_now
                              AND (v_over IS NULL OR c.partition_id <> ALL (v_over))
                              AND (v_paused IS NULL OR c.partition_id <> ALL (v_paused))
                            ORDER BY c.ready_at LIMIT v_rest FOR NO KEY UPDATE SKIP LOCKED
                        ) x
                        WHERE k.fair_key <> ALL (v_full) AND queen.key_full_for(v_queue.id, r.grp, k.fair_key, NOT r.auto_ack) IS NULL
                        LIMIT v_rest
                    ) x;
                ELSIF v_rest > 0 THEN
                    -- From where the last walk ended: what it claimed lies before, and would be stepped over again.
                    SELECT array_agg(x.partition_id), array_agg(x.version), max(x.ready_at), bool_or(x.lease_id IS NOT NULL)
                    INTO v_ids, v_versions, v_reached, v_left_off FROM (
                        SELECT c.partition_id, c.ready_at, c.lease_id, c.ctid AS version FROM queen.partition_consumers c
                        WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp
                          AND c.ready_at >= v_reached AND c.ready_at <= v_now
                          AND (v_over IS NULL OR c.partition_id <> ALL (v_over))
                          AND (v_paused IS NULL OR c.partition_id <> ALL (v_paused))
                        ORDER BY c.ready_at LIMIT v_rest FOR NO KEY UPDATE SKIP LOCKED
                    ) x;
                END IF;
                -- It took long, perhaps because of old versions that it stepped over: the next one begins behind them.
                IF clock_timestamp() > v_began + interval '100 microseconds' + v_want * interval '10 microseconds'
                   AND (v_moved IS NULL OR v_moved < v_now - interval '100 ms') THEN
                    PERFORM queen.move_ready_floor(v_queue.id, r.grp);
                    v_moved := v_now;
                END IF;
                IF v_keyed IS NOT NULL THEN
                    v_ids := v_keyed || v_ids;
                    v_versions := v_others || v_versions;
                    v_left_off := v_abandoned OR coalesce(v_left_off, false);
                    v_reached := v_walked;      -- those that were taken by their key may lie anywhere
                END IF;
            ELSE
                SELECT array_agg(x.partition_id), array_agg(x.version), bool_or(x.lease_id IS NOT NULL) INTO v_ids, v_versions, v_left_off FROM (
                    SELECT c.partition_id, c.lease_id, c.ctid AS version FROM queen.partition_consumers c
                    WHERE c.ctid = (
                              SELECT x.ctid FROM queen.partition_consumers x
                              WHERE x.partition_id = v_only AND x.consumer_group = r.grp ORDER BY x.generation DESC LIMIT 1)
                      AND c.ready_at <= v_now AND v_passed IS NULL
                    FOR NO KEY UPDATE SKIP LOCKED
                ) x;
            END IF;
            EXIT WHEN v_ids IS NULL;
            v_found := cardinality(v_ids);
            IF v_by_key THEN
                v_keys := queen.limit_keys_for(
                    v_queue.id, r.grp, v_queue.fair_separator, v_ids, v_versions, v_most, NOT r.auto_ack,
                    v_allowed.key_scopes, v_allowed.key_leases, v_allowed.key_rates, v_allowed.key_bursts);
                v_granted := v_ids;
                v_taken := v_keys.taken;
                IF v_keys.full_keys IS NOT NULL THEN
                    RETURN QUERY SELECT r.requests[1], NULL::uuid, t.key, 0, NULL::bytea, t.by_rate, NULL::timestamptz, t.ms
                                 FROM unnest(v_keys.full_keys, v_keys.by_rate, v_keys.waits) AS t (key, by_rate, ms);
                    SELECT t.key, t.by_rate, t.ms INTO v_soonest, v_by_rate, v_full_ms FROM (
                        SELECT v_soonest, v_by_rate, v_full_ms WHERE v_full IS NOT NULL
                        UNION ALL SELECT x.* FROM unnest(v_keys.full_keys, v_keys.by_rate, v_keys.waits) AS x
                    ) t (key, by_rate, ms) ORDER BY t.ms LIMIT 1;
                    v_full := v_full || v_keys.full_keys;
                    SELECT v_passed || array_agg(t.id) FILTER (WHERE t.n = 0), array_agg(t.id ORDER BY t.i) FILTER (WHERE t.n > 0),
                           array_agg(t.version ORDER BY t.i) FILTER (WHERE t.n > 0), array_agg(t.n ORDER BY t.i) FILTER (WHERE t.n > 0)
                    INTO v_passed, v_ids, v_versions, v_shares
                    FROM unnest(v_ids, v_versions, v_keys.messages) WITH ORDINALITY AS t (id, version, n, i);
                    IF v_ids IS NULL THEN
                        EXIT WHEN v_only IS NOT NULL OR cardinality(v_full) > 200;
                        CONTINUE;
                    END IF;
                ELSE
                    v_shares := v_keys.messages;
                END IF;
                v_before := cardinality(v_leased);
            END IF;
            IF v_left_off THEN
                PERFORM queen.note_expired(v_ids, r.grp);
            END IF;

            IF v_queue.dlq_after_max_retries THEN
                PERFORM queen.count_expiry(t.id, r.grp, v_queue) FROM unnest(v_ids) AS t (id);
            END IF;
            IF v_queue.ttl_s > 0 THEN
                PERFORM queen.skip_over(
                    t.id, r.grp, queen.offset_before(t.id, v_now - make_interval(secs => v_queue.ttl_s), true),
                    v_queue.dead_letter_queue, 'Message expired (ttl)')
                FROM unnest(v_ids) AS t (id);
            END IF;

            IF v_conflates THEN
                SELECT array_agg(x.examined ORDER BY t.i), array_agg(x.fitting ORDER BY t.i) INTO v_upto, v_fitting
                FROM unnest(v_ids) WITH ORDINALITY AS t (id, i)
                CROSS JOIN LATERAL queen.pass_superseded(t.id, r.grp, v_filter, v_queue.delayed_processing_s, v_until) x;
            ELSIF v_filter.queue_id IS NOT NULL THEN
                SELECT array_agg(x.examined ORDER BY t.i), array_agg(x.fitting ORDER BY t.i) INTO v_upto, v_fitting
                FROM unnest(v_ids) WITH ORDINALITY AS t (id, i)
                CROSS JOIN LATERAL queen.pass_unmatched(t.id, r.grp, v_filter, v_left, v_until) x;
            END IF;
            IF v_upto IS NOT NULL THEN
                SELECT array_agg(t.id) INTO v_empty FROM unnest(v_ids, v_fitting) AS t (id, fitting) WHERE t.fitting = 0;
                IF v_empty IS NOT NULL THEN
                    -- They sleep if all of them was passed over, and are left for the next call if not.
                    UPDATE queen.partition_consumers c SET lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL
                    WHERE c.partition_id = ANY (v_empty) AND c.consumer_group = r.grp AND c.lease_id IS NOT NULL;
                    PERFORM queen.settle(v_empty, array_fill(r.grp, ARRAY[cardinality(v_empty)]), true);
                    v_passed := v_passed || v_empty;
                    SELECT array_agg(t.id ORDER BY t.i), array_agg(t.upto ORDER BY t.i),
                           CASE WHEN v_shares IS NOT NULL THEN array_agg(t.share ORDER BY t.i) END INTO v_ids, v_upto, v_shares
                    FROM unnest(v_ids, v_upto, v_fitting, v_shares) WITH ORDINALITY AS t (id, upto, fitting, share, i) WHERE t.fitting > 0;
                    IF v_ids IS NULL THEN
                        IF v_by_key THEN
                            PERFORM queen.return_key_tokens(v_queue.id, v_allowed.key_scopes, v_granted, v_keys.keys, v_keys.messages, '{}', '{}');
                        END IF;
                        EXIT WHEN v_only IS NOT NULL OR clock_timestamp() >= v_until;
                        CONTINUE;
                    END IF;
                END IF;
            END IF;

            IF v_queue.dlq_after_max_retries OR v_queue.ttl_s > 0 OR v_upto IS NOT NULL THEN
                SELECT array_agg(n.version ORDER BY t.i) INTO v_versions FROM unnest(v_ids) WITH ORDINALITY AS t (id, i)
                CROSS JOIN LATERAL (
                    SELECT x.ctid AS version FROM queen.partition_consumers x
                    WHERE x.partition_id = t.id AND x.consumer_group = r.grp ORDER BY x.generation DESC LIMIT 1
                ) n;
            END IF;

            v_held := NULL;
            IF r.auto_ack THEN
                -- Only a group that reaches the head may fall asleep, and only under its lock (see queen.settle).
                SELECT array_agg(x.partition_id) INTO v_held FROM (
                    SELECT l.partition_id FROM unnest(v_ids, v_versions) AS t (id, version)
                    JOIN queen.partition_consumers c ON c.ctid = t.version
                    CROSS JOIN LATERAL (
                        SELECT h.ctid AS version, h.last_offset FROM queen.partition_lookup h
                        WHERE h.partition_id = t.id ORDER BY h.generation DESC LIMIT 1
                    ) n
                    JOIN queen.partition_lookup l ON l.ctid = n.version
                    WHERE n.last_offset <= c.position + v_left
                    FOR NO KEY UPDATE OF l SKIP LOCKED
                ) x;
            END IF;

            LOOP
            v_rows := 0;
            FOR request, partition_id, partition_name, message_count, glued, has_sealed, first_created_at IN
            WITH picked AS MATERIALIZED (
                SELECT t.i, t.id AS part, t.version, c.skipped IS NOT NULL AS skips, m.*,
                       CASE WHEN c.failures IS NULL THEN 0 ELSE queen.times_failed(c.failures, m."offset") END AS times_failed
                FROM unnest(v_ids, v_versions) WITH ORDINALITY AS t (id, version, i)
                JOIN queen.partition_consumers c ON c.ctid = t.version
                CROSS JOIN LATERAL (
                    SELECT CASE WHEN c.skipped IS NULL THEN c.done ELSE c.done + queen.kept_back(c.skipped, v_now) END AS offsets
                ) hidden
                -- Behind what is skipped there may be very much that is finished.
                CROSS JOIN LATERAL (
                    SELECT CASE WHEN c.skipped IS NULL THEN c.position ELSE queen.end_of_done(hidden.offsets, c.position) END AS upto
                ) finished
                CROSS JOIN LATERAL (
                    SELECT * FROM (
                        SELECT m."offset", m.id, m.transaction_id, m.trace_id, m.payload, m.is_encrypted,
                               m.producer_sub, m.created_at, m.headers
                        FROM queen.messages m
                        WHERE m.partition_id = t.id AND m."offset" > finished.upto AND NOT hidden.offsets @> m."offset"
                          AND (v_upto IS NULL OR m."offset" <= v_upto[t.i])
                        ORDER BY m."offset" LIMIT CASE WHEN v_shares IS NULL THEN v_limit ELSE v_shares[t.i] END
                    ) first
                    WHERE v_queue.delayed_processing_s = 0
                       OR first.created_at <= v_now - make_interval(secs => v_queue.delayed_processing_s)
                ) m
                WHERE v_queue.window_buffer_s = 0 OR EXISTS (
                    SELECT 1 FROM (
                        SELECT h.last_message_at FROM queen.partition_lookup h
                        WHERE h.partition_id = t.id ORDER BY h.generation DESC LIMIT 1
                    ) l WHERE l.last_message_at <= v_now - make_interval(secs => v_queue.window_buffer_s))
            ), claim AS (
                SELECT k.part, k.version, min(k."offset") AS first, max(k."offset") AS last, count(*) AS n,
                       dense_rank() OVER (ORDER BY k.i) AS slot, h.id IS NOT NULL AS held,
                       range_agg(int8range(k."offset", k."offset", '[]')) FILTER (WHERE k.skips) AS around
                FROM picked k
                LEFT JOIN unnest(v_held) AS h (id) ON h.id = k.part
                GROUP BY k.part, k.version, k.i, h.id
            ), taken AS (
                UPDATE queen.partition_consumers c
                -- Where messages are skipped, the position stays before them (see queen.reached).
                SET position = CASE WHEN k.around IS NULL THEN CASE WHEN NOT r.auto_ack THEN k.first - 1 WHEN v_upto IS NULL THEN k.last
                                                                 ELSE queen.end_of_done(c.done, k.last) END
                                    WHEN r.auto_ack THEN queen.reached(k.part, c.position, c.done + k.around, upper(c.done + k.around) - 1)
                                    ELSE c.position END,
                    done = CASE WHEN k.around IS NULL
                                THEN c.done * int8multirange(int8range(CASE
                                    WHEN NOT r.auto_ack THEN k.first WHEN v_upto IS NULL THEN k.last + 1
                                    ELSE queen.end_of_done(c.done, k.last) + 1 END, NULL))
                                WHEN r.auto_ack
                                THEN (c.done + k.around) * int8multirange(int8range(
                                    queen.reached(k.part, c.position, c.done + k.around, upper(c.done + k.around) - 1) + 1, NULL))
                                ELSE c.done END,
                    skipped = CASE WHEN k.around IS NOT NULL THEN queen.still_skipped(c.skipped, c.position, k.around) END,
                    lease_id = CASE WHEN NOT r.auto_ack THEN r.leases[v_next - 1 + k.slot] END,
                    lease_expires_at = CASE WHEN NOT r.auto_ack THEN
                        v_now + make_interval(secs => coalesce(nullif(v_queue.lease_time_s, 0), 60)) END,
                    lease_offsets = CASE
                        WHEN r.auto_ack THEN NULL
                        WHEN k.around IS NOT NULL THEN k.around
                        WHEN k.n = k.last - k.first + 1 THEN int8multirange(int8range(k.first, k.last, '[]'))
                        ELSE (SELECT range_agg(int8range(o."offset", o."offset", '[]')) FROM picked o WHERE o.part = k.part)
                    END,
                    ready_at = CASE
                        WHEN NOT r.auto_ack THEN greatest(
                            clock_timestamp(), v_now + make_interval(secs => coalesce(nullif(v_queue.lease_time_s, 0), 60)))
                        WHEN k.held AND k.last >= (
                            SELECT l.last_offset FROM queen.partition_lookup l
                            WHERE l.partition_id = k.part ORDER BY l.generation DESC LIMIT 1) AND k.around IS NULL THEN NULL
                        ELSE clock_timestamp() END,
                    retry_at = NULL,
                    failures = CASE WHEN r.auto_ack AND c.failures IS NOT NULL
                                    THEN queen.count_failures(c.failures, '{}', CASE WHEN k.around IS NULL THEN k.last ELSE c.position END,
                                                              coalesce(c.done + k.around, '{}'))
                                    ELSE c.failures END,
                    attempts = CASE WHEN r.auto_ack AND c.failures IS NOT NULL
                                    THEN queen.head_failures(
                                        k.part, CASE WHEN k.around IS NULL THEN k.last ELSE c.position END, coalesce(c.done + k.around, c.done),
                                        queen.count_failures(c.failures, '{}', CASE WHEN k.around IS NULL THEN k.last ELSE c.position END,
                                                             coalesce(c.done + k.around, '{}')))
                                    ELSE c.attempts END,
                    total_consumed = c.total_consumed + CASE WHEN r.auto_ack THEN k.n ELSE 0 END,
                    last_consumed_at = CASE WHEN r.auto_ack THEN v_now ELSE c.last_consumed_at END,
                    generation = c.generation + 1
                FROM claim k
                WHERE c.ctid = k.version
                  AND (v_counted OR (SELECT sum(octet_length(o.payload) + coalesce(octet_length(o.headers::text), 0)) FROM picked o)
                                    <= least(p_answer_bytes, v_share * cardinality(v_ids)))
                RETURNING c.partition_id AS part, k.slot
            )
            SELECT r.requests[v_next - 1 + t.slot], t.part, p.name, count(*)::integer,
                   string_agg(
                       convert_to(concat(
                           '{"id":"', k.id, '","transactionId":', to_json(k.transaction_id), ',"offset":', k."offset", ',"createdAt":"',
                           CASE k.created_at
                               WHEN 'infinity' THEN '9999-12-31T23:59:59.999999Z'
                               WHEN '-infinity' THEN '0001-01-01T00:00:00.000000Z'
                               ELSE to_char(k.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
                           END,
                           '","retryCount":', k.times_failed,
                           CASE WHEN k.producer_sub IS NULL THEN ',"producerSub":null'
                                ELSE concat(',"producerSub":', to_json(k.producer_sub)) END,
                           CASE WHEN k.trace_id IS NULL THEN ',"traceId":null' ELSE queen.trace_fields(k.trace_id, k.id) END,
                           CASE WHEN k.headers IS NOT NULL THEN concat(',"headers":', k.headers) END,
                           CASE WHEN k.is_encrypted THEN ',"isEncrypted":true' END, ',"data":'), 'UTF8')
                       || CASE WHEN k.is_encrypted THEN convert_to(concat('"', encode(k.payload, 'hex'), '"'), 'UTF8') ELSE k.payload END,
                       '\x1e'::bytea ORDER BY k."offset"),
                   bool_or(k.is_encrypted), min(k.created_at)
            FROM taken t
            JOIN picked k ON k.part = t.part
            JOIN queen.partitions p ON p.id = t.part
            GROUP BY t.slot, t.part, p.name
            LOOP
                v_rows := v_rows + message_count;
                IF v_queue.has_limits THEN
                    v_used := v_used + message_count;
                    v_leased := v_leased || partition_id;
                    v_leases := v_leases || r.leases[width_bucket(request, r.requests)];
                    v_counts := v_counts || message_count;
                END IF;
                RETURN NEXT;
            END LOOP;
            EXIT WHEN v_rows > 0 OR v_counted;

            -- There was too much, or nothing at all: groups that have read everything stay awake while somebody holds the heads of their
            -- partitions, which may be many.
            SELECT t.i INTO v_first FROM unnest(v_ids, v_versions) WITH ORDINALITY AS t (id, version, i)
            JOIN queen.partition_consumers c ON c.ctid = t.version
            WHERE EXISTS (
                SELECT 1 FROM queen.messages m WHERE m.partition_id = t.id AND m."offset" > c.position AND NOT c.done @> m."offset")
            ORDER BY t.i LIMIT 1;
            EXIT WHEN NOT FOUND;
            -- The other partitions are left for later; v_reached goes back to before them.
            v_counted := true;
            v_ids := v_ids[v_first:v_first];
            v_versions := v_versions[v_first:v_first];
            v_upto := v_upto[v_first:v_first];
            v_most := coalesce(v_shares[v_first], v_most);
            v_shares := NULL;
            v_reached := v_walked;
            SELECT greatest(1, count(*) FILTER (WHERE x.upto <= v_room)), coalesce(max(x.upto), 0) INTO v_limit, v_bytes
            FROM (
                SELECT sum(octet_length(m.payload) + coalesce(octet_length(m.headers::text), 0)) OVER (ORDER BY m."offset") AS upto
                FROM (
                    SELECT x.partition_id, x.position,
                           CASE WHEN x.skipped IS NULL THEN x.done ELSE x.done + queen.kept_back(x.skipped, v_now) END AS hidden
                    FROM queen.partition_consumers x
                    WHERE x.partition_id = v_ids[1] AND x.consumer_group = r.grp ORDER BY x.generation DESC LIMIT 1
                ) c
                JOIN queen.messages m ON m.partition_id = c.partition_id AND m."offset" > c.position
                                     AND NOT c.hidden @> m."offset" AND (v_upto IS NULL OR m."offset" <= v_upto[1])
                ORDER BY m."offset" LIMIT v_most
            ) x;
            v_bytes := least(v_bytes, v_room);
            v_room := v_room - v_bytes;
            v_spent := v_spent + v_bytes;
            END LOOP;

            v_empty := NULL;
            IF v_rows < (CASE WHEN v_shares IS NULL THEN cardinality(v_ids) * v_most ELSE v_taken END) THEN
                SELECT array_agg(t.id) INTO v_empty FROM unnest(v_ids) AS t (id)
                CROSS JOIN LATERAL (
                    SELECT x.ready_at FROM queen.partition_consumers x
                    WHERE x.partition_id = t.id AND x.consumer_group = r.grp ORDER BY x.generation DESC LIMIT 1
                ) c
                WHERE c.ready_at <= v_now;
            END IF;
            v_unserved := coalesce(cardinality(v_empty), 0);
            IF v_empty IS NOT NULL AND v_only IS NULL THEN
                -- There may be many more of these, for example if several groups read what is pushed at once. They fall asleep together; the
                -- heads are locked first, so that nothing can be pushed to them meanwhile.
                SELECT array_agg(x.version) INTO v_versions FROM (
                    SELECT a.version FROM (
                        SELECT c.partition_id, c.position, c.ctid AS version FROM queen.partition_consumers c
                        WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp AND c.ready_at >= v_reached AND c.ready_at <= v_now
                          AND c.lease_id IS NULL AND c.partition_id <> ALL (v_empty)
                          AND (v_passed IS NULL OR c.partition_id <> ALL (v_passed))
                        ORDER BY c.ready_at LIMIT 100
                    ) a
                    CROSS JOIN LATERAL (
                        SELECT h.ctid AS version, h.last_offset FROM queen.partition_lookup h
                        WHERE h.partition_id = a.partition_id ORDER BY h.generation DESC LIMIT 1
                    ) n
                    JOIN queen.partition_lookup l ON l.ctid = n.version
                    WHERE a.position >= n.last_offset
                    FOR NO KEY UPDATE OF l SKIP LOCKED
                ) x;
                SELECT v_empty || array_agg(x.partition_id) INTO v_empty FROM (
                    SELECT c.partition_id FROM queen.partition_consumers c
                    WHERE c.ctid = ANY (v_versions) AND c.lease_id IS NULL FOR NO KEY UPDATE SKIP LOCKED
                ) x;
            END IF;
            IF v_empty IS NOT NULL THEN
                UPDATE queen.partition_consumers c
                SET lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL
                WHERE c.partition_id = ANY (v_empty) AND c.consumer_group = r.grp AND c.lease_id IS NOT NULL;
                PERFORM queen.settle(v_empty, array_fill(r.grp, ARRAY[cardinality(v_empty)]), true);
                -- Those whose head somebody holds stay awake, and so do others of the kind, which may be many.
                SELECT v_passed || array_agg(x.partition_id) INTO v_passed FROM (
                    SELECT c.partition_id FROM queen.partition_consumers c
                    WHERE c.partition_id = ANY (v_empty) AND c.consumer_group = r.grp AND c.ready_at <= v_now
                ) x HAVING count(*) > 0;
                IF FOUND AND v_only IS NULL THEN
                    SELECT v_passed || array_agg(x.partition_id) INTO v_passed FROM (
                        SELECT c.partition_id FROM queen.partition_consumers c
                        CROSS JOIN LATERAL (
                            SELECT h.last_offset FROM queen.partition_lookup h
                            WHERE h.partition_id = c.partition_id ORDER BY h.generation DESC LIMIT 1
                        ) l
                        WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp
                          AND c.ready_at >= v_reached AND c.ready_at <= v_now
                          AND c.lease_id IS NULL AND c.position >= l.last_offset
                        ORDER BY c.ready_at LIMIT 1000
                    ) x;
                END IF;
            END IF;
            IF r.auto_ack AND (v_queue.delayed_processing_s > 0 OR v_queue.has_policies) THEN
                PERFORM queen.settle(v_ids, array_fill(r.grp, ARRAY[cardinality(v_ids)]), false);
            END IF;

            IF v_queue.has_limits AND v_rows > 0 THEN
                v_allowed.messages := v_allowed.messages - v_rows;
                v_allowed.leases := v_allowed.leases - cardinality(v_ids) + v_unserved;
            END IF;
            IF v_by_key AND v_rows < v_taken THEN
                PERFORM queen.return_key_tokens(
                    v_queue.id, v_allowed.key_scopes, v_granted, v_keys.keys, v_keys.messages, v_leased[v_before + 1:], v_counts[v_before + 1:]);
            END IF;
            IF r.parts = 1 THEN
                v_next := v_next + cardinality(v_ids) - v_unserved;
                v_room := p_answer_bytes;
                IF r.auto_ack AND v_rows > 0 THEN
                    v_now := clock_timestamp();     -- the same partitions may serve the next requests
                ELSE
                    EXIT WHEN v_found < v_want AND NOT v_counted;
                END IF;
            ELSE
                v_left := v_left - v_rows;
                v_parts := v_parts - CASE WHEN v_empty IS NULL THEN 1 ELSE 0 END;
                IF v_left <= 0 OR v_parts = 0 OR v_room <= 0 THEN
                    v_next := v_next + 1;
                    v_left := r.batch;
                    v_parts := r.parts;
                    v_room := p_answer_bytes;
                END IF;
            END IF;
        END LOOP;

        IF v_probes AND v_next > 1 THEN
            -- The next one if this lease ends without an acknowledgement.
            UPDATE queen.breakers b
            SET probe_lease = r.leases[1], probe_at = v_now + make_interval(secs => coalesce(nullif(v_queue.lease_time_s, 0), 60))
            WHERE b.queue_id = v_queue.id AND b.consumer_group = r.grp;
        END IF;
        IF v_queue.has_limits THEN
            IF v_used > 0 AND (v_allowed.slots IS NOT NULL OR v_allowed.shards IS NOT NULL) THEN
                PERFORM queen.use_limits(
                    r.grp, v_allowed.slots, v_allowed.queue_slots, v_allowed.shards, v_allowed.tokens, v_allowed.queue_shards, v_allowed.at,
                    v_leased, v_leases, v_used);
            END IF;
            IF v_next <= cardinality(r.requests) AND (v_allowed.messages = 0 OR (v_allowed.leases = 0 AND NOT r.auto_ack)) THEN
                RETURN QUERY SELECT t.i, NULL::uuid, NULL, 0, NULL::bytea, coalesce(v_allowed.by_rate, false), NULL::timestamptz,
                                    coalesce(v_allowed.wait_ms, 1)::double precision
                             FROM unnest(r.requests[v_next:]) AS t (i);
                CONTINUE;
            END IF;
        END IF;
        IF v_spent >= p_bytes THEN
            RETURN QUERY SELECT t.i, NULL::uuid, NULL, NULL::integer, NULL::bytea, NULL::boolean, NULL::timestamptz,
                                -1::double precision
                         FROM unnest(r.requests[v_next:]) AS t (i);
        ELSIF v_next <= cardinality(r.requests) THEN
            IF (v_filter.queue_id IS NOT NULL OR v_conflates) AND clock_timestamp() >= v_until THEN
                v_ready := v_now;       -- there may be more
            ELSIF v_only IS NULL THEN
                SELECT c.ready_at INTO v_ready FROM queen.partition_consumers c
                WHERE c.queue_id = v_queue.id AND c.consumer_group = r.grp
                  AND c.ready_at > v_now AND c.ready_at <= v_now + interval '2 seconds'
                ORDER BY c.ready_at LIMIT 1;
            ELSE
                SELECT x.ready_at INTO v_ready FROM (
                    SELECT c.ready_at FROM queen.partition_consumers c
                    WHERE c.partition_id = v_only AND c.consumer_group = r.grp ORDER BY c.generation DESC LIMIT 1
                ) x WHERE x.ready_at > v_now;
            END IF;
            IF v_full IS NOT NULL THEN
                RETURN QUERY SELECT t.i, NULL::uuid, v_soonest, 0, NULL::bytea, v_by_rate, NULL::timestamptz,
                                    least(v_full_ms, CASE WHEN v_ready IS NOT NULL THEN
                                        greatest(0, extract(epoch FROM v_ready - clock_timestamp()))::double precision * 1000 END)
                             FROM unnest(r.requests[v_next:]) AS t (i);
            ELSIF v_ready IS NOT NULL THEN
                RETURN QUERY SELECT t.i, NULL::uuid, NULL, NULL::integer, NULL::bytea, NULL::boolean, NULL::timestamptz,
                                    greatest(0, extract(epoch FROM v_ready - clock_timestamp()))::double precision * 1000
                             FROM unnest(r.requests[v_next:]) AS t (i);
            END IF;
        END IF;
    END LOOP;
END $$;
