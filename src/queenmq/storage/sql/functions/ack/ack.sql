-- Apply a merged batch of acknowledgements; one row per item, in order.
-- The arrays run in parallel. A null lease is unfenced. Retry or dead letter is decided for each message by how often it had failed before
-- this call, so the caller merges two requests about one (partition, group) only if both say nothing but `completed`.
-- p_required not null makes it the acknowledging half of a transaction: an ack without a lease must belong to one of
-- these leases (if there are any), a missing group is the one that holds such a lease, and `failed` goes to the dead
-- letters at once.
-- What a group does with messages that fail is said by queen.policies, if its queue has some: with `skip`, a message that failed is kept back
-- by itself (the column `skipped`), as long as there are no more than 100 of them; with `park`, one whose attempts are used up keeps back all that follow.
-- What fails is remembered in queen.attempts.
-- Locks: rows of partition_consumers by (partition, group); then heads that the acks reach, and rows of breakers, without waiting.
CREATE OR REPLACE FUNCTION queen.ack(
    p_partition uuid[], p_transaction text[], p_group text[], p_lease uuid[], p_status text[], p_error text[],
    p_required uuid[] DEFAULT NULL)
RETURNS TABLE (index integer, problem text, queue_name text, partition_name text, consumer_group text,
               lease_released boolean, dead_lettered boolean)
LANGUAGE plpgsql
-- The planner knows only live rows, and would read all versions of the few that there are.
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now     timestamptz;
    v_groups  text[] := p_group;
    v_offsets bigint[];
    v_held    uuid[];
    v_special boolean;
BEGIN
    IF array_position(p_group, NULL) IS NOT NULL THEN
        SELECT array_agg(coalesce(t.grp, held.grp, '__QUEUE_MODE__') ORDER BY t.i) INTO v_groups
        FROM unnest(p_partition, p_group) WITH ORDINALITY AS t (part, grp, i)
        LEFT JOIN LATERAL (
            SELECT min(c.consumer_group) AS grp FROM queen.partition_consumers c
            WHERE t.grp IS NULL AND c.partition_id = t.part AND CASE WHEN c.lease_id = ANY (p_required) THEN true END
              AND c.lease_expires_at > clock_timestamp()
            HAVING count(*) = 1
        ) held ON true;
    END IF;

    SELECT array_agg(m."offset" ORDER BY t.i) INTO v_offsets
    FROM unnest(p_partition, p_transaction) WITH ORDINALITY AS t (part, tx, i)
    LEFT JOIN queen.messages m ON m.partition_id = t.part AND m.transaction_id = t.tx;

    PERFORM 1
    FROM (SELECT DISTINCT part, grp COLLATE "C" AS grp FROM unnest(p_partition, v_groups) AS u (part, grp) ORDER BY part, grp) t
    CROSS JOIN LATERAL (
        SELECT 1 FROM queen.partition_consumers c
        WHERE c.partition_id = t.part AND c.consumer_group = t.grp ORDER BY c.generation DESC LIMIT 1 FOR NO KEY UPDATE
    ) c;

    -- Only a group that reaches the head may fall asleep, and only under the head's lock (see queen.settle).
    SELECT array_agg(x.partition_id) INTO v_held FROM (
        SELECT l.partition_id
        FROM (SELECT part, max(o) AS o FROM unnest(p_partition, v_offsets) AS u (part, o) GROUP BY part) t
        CROSS JOIN LATERAL (
            SELECT h.ctid AS version, h.last_offset FROM queen.partition_lookup h
            WHERE h.partition_id = t.part ORDER BY h.generation DESC LIMIT 1
        ) n
        JOIN queen.partition_lookup l ON l.ctid = n.version AND l.last_offset <= t.o
        WHERE n.last_offset <= t.o
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ) x;

    v_now := clock_timestamp();
    IF p_status && '{failed,dlq,retry}' THEN
        PERFORM queen.note_failures(p_partition, v_offsets, v_groups, p_lease, p_status, p_error, p_required);
    END IF;
    -- Few databases have such queues, and that is quickly asked.
    v_special := EXISTS (SELECT 1 FROM queen.queues q WHERE q.delayed_processing_s + q.window_buffer_s > 0)
                 OR EXISTS (SELECT 1 FROM queen.policies);
    IF v_special AND EXISTS (SELECT 1 FROM queen.policies y WHERE y.breaker IS NOT NULL) THEN
        PERFORM queen.note_outcomes(x.queue_id, x.grp, x.leases, x.completed, x.failed) FROM (
            SELECT c.queue_id, t.grp, array_agg(DISTINCT c.lease_id) AS leases,
                   count(*) FILTER (WHERE t.status IN ('completed', 'success')) AS completed,
                   count(*) FILTER (WHERE t.status IN ('failed', 'dlq')) AS failed
            FROM unnest(p_partition, v_groups, v_offsets, p_lease, p_status) AS t (part, grp, "offset", lease, status)
            CROSS JOIN LATERAL (
                SELECT n.queue_id, n.lease_id, n.lease_expires_at, n.lease_offsets FROM queen.partition_consumers n
                WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
            ) c
            WHERE c.lease_expires_at > v_now AND c.lease_id = coalesce(t.lease, c.lease_id) AND c.lease_offsets @> t."offset"
            GROUP BY c.queue_id, t.grp
        ) x;
    END IF;
    RETURN QUERY
    WITH item AS MATERIALIZED (
        SELECT t.i, t.part, t.grp, t.error, t."offset",
               CASE WHEN t.status = 'success' THEN 'completed'
                    WHEN t.status = 'failed' AND p_required IS NOT NULL THEN 'exhausted'
                    WHEN t.status = 'failed'
                         AND CASE WHEN c.failures IS NULL THEN 0 ELSE queen.times_failed(c.failures, t."offset") END
                             >= coalesce(y.retry_limit, q.retry_limit)
                    THEN CASE WHEN y.poison = 'park' THEN 'parked' ELSE 'exhausted' END
                    WHEN t.status = 'failed' AND y.poison = 'skip' THEN 'skipped'
                    ELSE t.status END AS verdict,
               CASE WHEN y.poison IS NOT NULL
                    THEN queen.retry_delay(coalesce(y.retry_delays_ms, ARRAY[q.retry_delay_ms]), y.retry_jitter,
                                           queen.times_failed(c.failures, t."offset") + 1) END AS delay,
               q.name AS queue, p.name AS partition,
               c.partition_id IS NOT NULL AS known, c.version,
               t.lease IS NOT NULL OR cardinality(p_required) > 0 AS fenced,
               coalesce(c.lease_expires_at > v_now
                        AND CASE WHEN t.lease IS NOT NULL THEN c.lease_id = t.lease
                                 WHEN cardinality(p_required) > 0 THEN c.lease_id = ANY (p_required)
                                 ELSE true END, false) AS live,
               t."offset" <= c.position OR c.done @> t."offset" AS finished,
               coalesce(c.lease_offsets @> t."offset", false) AS leased
        FROM unnest(p_partition, v_offsets, v_groups, p_lease, p_status, p_error)
             WITH ORDINALITY AS t (part, "offset", grp, lease, status, error, i)
        LEFT JOIN queen.partitions p ON p.id = t.part
        LEFT JOIN queen.queues q ON q.id = p.queue_id
        LEFT JOIN LATERAL (
            SELECT n.partition_id, n.ctid AS version, n.failures, n.lease_id, n.lease_expires_at, n.lease_offsets, n.position, n.done
            FROM queen.partition_consumers n
            WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
        ) c ON true
        -- As queen.retry_rule says.
        LEFT JOIN LATERAL (
            SELECT o.retry_limit, o.retry_delays_ms, o.retry_jitter, o.poison FROM queen.policies o
            WHERE q.has_policies AND o.queue_id = q.id AND o.consumer_group IN ('', t.grp) AND o.retry IS NOT NULL
            ORDER BY o.consumer_group DESC LIMIT 1
        ) y ON true
    ), judged AS MATERIALIZED (
        SELECT *, CASE
            WHEN "offset" IS NULL OR queue IS NULL THEN 'Message not found'
            WHEN fenced AND NOT live THEN 'Invalid or expired lease'
            WHEN NOT known OR finished THEN NULL
            WHEN fenced AND NOT leased THEN 'Invalid or expired lease'
            WHEN verdict IN ('failed', 'retry', 'skipped', 'parked') AND NOT (leased AND live) THEN 'Invalid or expired lease'
        END AS problem
        FROM item
    ), effect AS (
        SELECT * FROM judged WHERE problem IS NULL AND known AND NOT finished
    ), tally AS (
        SELECT part, grp, version,
               coalesce(range_agg(int8range("offset", "offset", '[]'))
                        FILTER (WHERE verdict NOT IN ('failed', 'retry', 'skipped', 'parked')), '{}') AS finishing,
               count(DISTINCT "offset") FILTER (WHERE verdict NOT IN ('failed', 'retry', 'skipped', 'parked')) AS n,
               range_agg(int8range("offset", "offset", '[]')) FILTER (WHERE verdict IN ('failed', 'skipped', 'parked')) AS failed,
               bool_or(verdict IN ('failed', 'retry', 'skipped', 'parked')) AS handed_back,
               bool_or(verdict = 'failed') AS blocks, max(delay) FILTER (WHERE verdict IN ('failed', 'skipped')) AS delay,
               array_agg((v_now + delay, int8multirange(int8range("offset", "offset", '[]')), false)::queen.skipped)
                   FILTER (WHERE verdict = 'skipped') AS skips,
               array_agg(('9999-12-31Z', int8multirange(int8range("offset", "offset", '[]')), true)::queen.skipped)
                   FILTER (WHERE verdict = 'parked') AS parks
        FROM effect GROUP BY part, grp, version
    ), step AS (
        SELECT y.*, c.lease_offsets - y.finishing AS remaining,
               c.done + y.finishing AS done, c.failures AS failed_before, c.skipped AS skipped_before,
               CASE WHEN c.skipped IS NULL THEN b.goal ELSE queen.reached(c.partition_id, c.position, c.done + y.finishing, b.goal) END AS floor
        FROM tally y
        JOIN queen.partition_consumers c ON c.ctid = y.version
        CROSS JOIN LATERAL (
            SELECT greatest(c.position, CASE
                       WHEN c.lease_offsets IS NULL OR isempty(c.lease_offsets) THEN 0
                       WHEN isempty(c.lease_offsets - y.finishing) THEN upper(c.lease_offsets) - 1
                       ELSE lower(c.lease_offsets - y.finishing) - 1 END) AS goal
        ) b
    ), goal AS (
        SELECT s.*, s.handed_back OR coalesce(isempty(s.remaining), false) AS released,
               coalesce((SELECT upper(d) - 1 FROM unnest(s.done) AS d WHERE d @> s.floor + 1), s.floor) AS position
        FROM step s
    ), counted AS (
        SELECT g.*, g.blocks OR NOT f.fits AS paused,
               CASE WHEN f.fits THEN g.skipped_before || g.skips ELSE g.skipped_before END || g.parks AS skipped,
               CASE WHEN g.failed_before IS NOT NULL OR g.failed IS NOT NULL
                         THEN queen.count_failures(g.failed_before, coalesce(g.failed, '{}'), g.position, g.done) END AS failures
        FROM goal g
        CROSS JOIN LATERAL (
            SELECT g.skips IS NULL
                   OR cardinality(g.skips) + (SELECT coalesce(sum(queen.count_offsets(s.offsets)), 0) FROM unnest(g.skipped_before) AS s) <= 100 AS fits
        ) f
    ), moved AS (
        UPDATE queen.partition_consumers c
        SET position = g.position,
            done = g.done * int8multirange(int8range(g.position + 1, NULL)),
            lease_offsets = CASE WHEN g.released THEN NULL ELSE g.remaining END,
            lease_id = CASE WHEN g.released THEN NULL ELSE c.lease_id END,
            lease_expires_at = CASE WHEN g.released THEN NULL ELSE c.lease_expires_at END,
            failures = g.failures,
            attempts = CASE WHEN g.failures IS NULL THEN 0
                            ELSE queen.head_failures(g.part, g.position, g.done, g.failures) END,
            retry_at = CASE WHEN g.position >= l.last_offset THEN NULL
                            WHEN g.paused THEN v_now + coalesce(g.delay, make_interval(secs => q.retry_delay_ms / 1000.0))
                            ELSE c.retry_at END,
            skipped = CASE WHEN g.skipped IS NOT NULL THEN queen.still_skipped(g.skipped, g.position, g.done) END,
            ready_at = CASE
                WHEN NOT g.released AND c.lease_id IS NOT NULL THEN c.ready_at
                WHEN g.position >= l.last_offset AND h.id IS NOT NULL THEN NULL
                ELSE greatest(v_now, CASE WHEN g.position >= l.last_offset THEN NULL
                                          WHEN g.paused THEN v_now + coalesce(g.delay, make_interval(secs => q.retry_delay_ms / 1000.0))
                                          ELSE c.retry_at END) END,
            total_consumed = c.total_consumed + g.n,
            last_consumed_at = CASE WHEN g.n > 0 THEN v_now ELSE c.last_consumed_at END,
            generation = c.generation + 1
        FROM counted g
        CROSS JOIN LATERAL (
            SELECT h.last_offset, h.queue_id FROM queen.partition_lookup h
            WHERE h.partition_id = g.part ORDER BY h.generation DESC LIMIT 1
        ) l
        JOIN queen.queues q ON q.id = l.queue_id
        LEFT JOIN unnest(v_held) AS h (id) ON h.id = g.part
        WHERE c.ctid = g.version
        RETURNING c.partition_id AS part, c.consumer_group AS grp, g.released
    ), buried AS (
        SELECT e.i, queen.bury(e.part, e.grp, int8multirange(int8range(e."offset", e."offset", '[]')),
                               coalesce(e.error, CASE
                                   WHEN p_required IS NOT NULL THEN 'Unknown error'
                                   WHEN e.verdict = 'exhausted' THEN 'Retries exhausted'
                                   ELSE 'Dead-lettered by the consumer' END),
                               c.failures, true)
        FROM effect e
        JOIN queen.partition_consumers c ON c.ctid = e.version
        WHERE e.verdict IN ('dlq', 'exhausted')
    )
    SELECT j.i::integer, j.problem, j.queue, j.partition, j.grp,
           coalesce(m.released, false), b.i IS NOT NULL
    FROM judged j
    LEFT JOIN moved m ON m.part = j.part AND m.grp = j.grp AND j.problem IS NULL
    LEFT JOIN buried b ON b.i = j.i
    ORDER BY j.i;

    -- Delays, windows and what is skipped have their own idea of when the rest may be read.
    IF v_special THEN
        PERFORM queen.settle(array_agg(c.partition_id), array_agg(c.consumer_group), false)
        FROM (SELECT DISTINCT part, grp COLLATE "C" AS grp FROM unnest(p_partition, v_groups) AS u (part, grp)) t
        CROSS JOIN LATERAL (
            SELECT n.partition_id, n.consumer_group, n.queue_id, n.lease_id, n.ready_at, n.skipped FROM queen.partition_consumers n
            WHERE n.partition_id = t.part AND n.consumer_group = t.grp ORDER BY n.generation DESC LIMIT 1
        ) c
        JOIN queen.queues q ON q.id = c.queue_id AND (q.delayed_processing_s + q.window_buffer_s > 0 OR c.skipped IS NOT NULL)
        WHERE c.lease_id IS NULL AND c.ready_at IS NOT NULL
        HAVING count(*) > 0;
    END IF;
END $$;
