-- Measure one page of a queue: of those measured before p_before the one that was measured first (see queen.page_statistics). A page has up to p_size
-- partitions: one with more is divided, and one that is nearly empty is joined with the one before it.
-- `measured` says whether one was, `more` whether there are others, and `unmeasured` whether some of them have never been measured. Of the partitions that are due longest and of those written last,
-- p_kept each are kept; the sums are made by queen.sum_statistics.
-- Reads one message for each group that has something unread, a few more in queues with a delay or ttl. A group that has begun the queue without being
-- registered is behind in the other partitions, too.
-- Locks: an advisory one for the queue, which is waited for only with p_wait (another server measures it just now); the row of the queue FOR KEY SHARE;
-- rows of statistics.
CREATE OR REPLACE FUNCTION queen.measure_page(
    p_queue uuid, p_before timestamptz, p_size integer, p_kept integer, p_wait boolean,
    OUT measured boolean, OUT more boolean, OUT unmeasured boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_lock       bigint := hashtextextended('queen.statistics ' || p_queue, 0);
    v_now        timestamptz;
    v_after      uuid;
    v_end        uuid;      -- of what is measured
    v_before     uuid;      -- where the page before it begins
    v_partitions bigint;
    v_groups     text[] := '{}';
    v_bound      timestamptz;
    r            record;
BEGIN
    measured := false;
    more := true;
    unmeasured := false;
    IF p_wait THEN
        PERFORM pg_advisory_xact_lock(v_lock);
    ELSIF NOT pg_try_advisory_xact_lock(v_lock) THEN
        RETURN;
    END IF;
    more := false;
    PERFORM 1 FROM queen.queues WHERE id = p_queue AND name IS NOT NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := clock_timestamp();
    SELECT s.after INTO v_after FROM queen.page_statistics s
    WHERE s.queue_id = p_queue AND s.consumer_group = '' AND (s.measured_at < p_before OR s.measured_at > v_now)
    ORDER BY s.measured_at LIMIT 1;
    IF NOT FOUND THEN
        IF EXISTS (SELECT 1 FROM queen.page_statistics s WHERE s.queue_id = p_queue) THEN
            RETURN;
        END IF;
        v_after := '00000000-0000-0000-0000-000000000000';
    END IF;
    SELECT s.after INTO v_end FROM queen.page_statistics s WHERE s.queue_id = p_queue AND s.after > v_after ORDER BY s.after LIMIT 1;
    v_end := coalesce(v_end, 'ffffffff-ffff-ffff-ffff-ffffffffffff');
    measured := true;

    FOR r IN
        WITH queue AS MATERIALIZED (
            SELECT q, q.name, q.delayed_processing_s + q.window_buffer_s + coalesce(q.ttl_s, 0) = 0 AND NOT q.dlq_after_max_retries AS simple
            FROM queen.queues q WHERE q.id = p_queue
        ), page AS MATERIALIZED (
            SELECT l.partition_id, l.first_offset, l.last_offset, l.last_message_at, l.holes,
                   greatest(0, l.last_offset - l.first_offset + 1 - l.holes) AS stored
            FROM queen.partition_lookup l
            WHERE l.queue_id = p_queue AND l.partition_id > v_after AND l.partition_id <= v_end
            ORDER BY l.partition_id LIMIT p_size
        ), begun AS MATERIALIZED (
            SELECT g.name FROM queue, queen.groups_of(queue.name, 1000) g WHERE g.started AND NOT g.registered
        ), standing AS MATERIALIZED (
            SELECT page.partition_id, page.stored, c.consumer_group, c.attempts, c.total_consumed, c.last_consumed_at, c.leased,
                   coalesce(s.unread, c.unread) AS unread, coalesce(s.due, c.unread) AS due,
                   CASE WHEN s.unread IS NULL THEN oldest.created_at ELSE s.due_since END AS due_since, true AS started
            FROM queue CROSS JOIN page
            -- OFFSET 0 keeps the planner at one probe a partition, whatever it believes about the tables.
            CROSS JOIN LATERAL (
                SELECT c.consumer_group, c.position, c.done, c.attempts, c.total_consumed, c.last_consumed_at,
                       least(page.stored, greatest(0, page.last_offset - greatest(page.first_offset - 1, c.position)
                                                      - queen.count_offsets(c.done))) AS unread,
                       CASE WHEN c.lease_expires_at > clock_timestamp() THEN queen.count_offsets(c.lease_offsets) END AS leased
                FROM queen.partition_consumers c WHERE c.partition_id = page.partition_id OFFSET 0
            ) c
            -- Where counting offsets is not enough. With OFFSET 0 the function is not called elsewhere.
            LEFT JOIN LATERAL (
                SELECT s.* FROM queen.describe_position(queue.q, page.partition_id, c.consumer_group, NULL, clock_timestamp()) s
                WHERE page.last_offset > c.position AND (NOT queue.simple OR page.holes > 0 OR c.done <> '{}') OFFSET 0
            ) s ON true
            LEFT JOIN LATERAL (
                SELECT m.created_at FROM queen.messages m
                WHERE s.unread IS NULL AND c.unread > 0 AND m.partition_id = page.partition_id AND m."offset" > c.position
                ORDER BY m."offset" LIMIT 1
            ) oldest ON true
            UNION ALL
            SELECT page.partition_id, page.stored, begun.name, 0, 0, NULL, NULL, s.unread, s.due, s.due_since, false
            FROM queue CROSS JOIN begun CROSS JOIN page
            -- Named after the group is known, so that nothing is looked up where there is no such group.
            CROSS JOIN LATERAL (
                SELECT p.name FROM queen.partitions p WHERE p.id = page.partition_id AND begun.name IS NOT NULL LIMIT 1
            ) p
            CROSS JOIN LATERAL queen.describe_position(queue.q, page.partition_id, begun.name,
                                           queen.start_of(queue.name, p.name, begun.name, false, clock_timestamp()), clock_timestamp()) s
            WHERE page.stored > 0 AND NOT EXISTS (
                SELECT 1 FROM queen.partition_consumers c WHERE c.partition_id = page.partition_id AND c.consumer_group = begun.name)
        ), slowest AS (
            SELECT DISTINCT ON (partition_id) partition_id, unread, least(unread, coalesce(leased, 0)) AS leased
            FROM standing ORDER BY partition_id, unread DESC, coalesce(leased, 0)
        )
        SELECT '' AS consumer_group, count(*) AS partitions, coalesce(sum(page.stored), 0)::bigint AS total,
               coalesce(sum(coalesce(s.unread - s.leased, page.stored)), 0)::bigint AS pending,
               coalesce(sum(s.leased), 0)::bigint AS processing,
               (SELECT count(*) FROM standing WHERE attempts > 0) AS failed,
               0::bigint AS lagging, 0::bigint AS unread, 0::bigint AS leases, 0::bigint AS consumed,
               max(page.last_message_at) AS last_message_at, NULL::timestamptz AS oldest_unread_at, NULL::timestamptz AS last_consumed_at,
               (array_agg(page.partition_id ORDER BY page.last_message_at DESC)
                    FILTER (WHERE page.last_message_at IS NOT NULL))[1:p_kept] AS chosen,
               (array_agg(page.last_message_at ORDER BY page.last_message_at DESC)
                    FILTER (WHERE page.last_message_at IS NOT NULL))[1:p_kept] AS chosen_at,
               (SELECT partition_id FROM page ORDER BY partition_id DESC LIMIT 1) AS last
        FROM page LEFT JOIN slowest s USING (partition_id)
        UNION ALL
        SELECT consumer_group, count(*) FILTER (WHERE started), 0, coalesce(sum(due), 0)::bigint, coalesce(sum(leased), 0)::bigint, 0,
               count(*) FILTER (WHERE due > 0), coalesce(sum(unread), 0)::bigint, count(*) FILTER (WHERE leased > 0), sum(total_consumed)::bigint,
               NULL, min(due_since), max(last_consumed_at),
               (array_agg(partition_id ORDER BY due_since) FILTER (WHERE due_since IS NOT NULL))[1:p_kept],
               (array_agg(due_since ORDER BY due_since) FILTER (WHERE due_since IS NOT NULL))[1:p_kept],
               NULL
        FROM standing GROUP BY consumer_group
    LOOP
        IF r.consumer_group = '' THEN
            v_partitions := r.partitions;
            IF r.partitions = p_size AND r.last < v_end THEN
                v_end := r.last;
                INSERT INTO queen.page_statistics (queue_id, after, consumer_group, measured_at) VALUES (p_queue, v_end, '', '-infinity');
            END IF;
            SELECT x.last_message_at INTO v_bound FROM queen.recent_partitions x
            WHERE x.queue_id = p_queue ORDER BY x.last_message_at DESC OFFSET p_kept - 1 LIMIT 1;
            DELETE FROM queen.recent_partitions x
            WHERE x.queue_id = p_queue AND x.partition_id > v_after AND x.partition_id <= v_end
              AND x.partition_id <> ALL (coalesce(r.chosen, '{}'));
            INSERT INTO queen.recent_partitions AS x (queue_id, partition_id, last_message_at)
            SELECT p_queue, t.id, t.at FROM unnest(r.chosen, r.chosen_at) AS t (id, at) WHERE v_bound IS NULL OR t.at >= v_bound
            ON CONFLICT (queue_id, partition_id) DO UPDATE SET last_message_at = excluded.last_message_at
            WHERE x.last_message_at <> excluded.last_message_at;
        ELSE
            v_groups := v_groups || r.consumer_group;
            SELECT x.oldest_unread_at INTO v_bound FROM queen.lagging_partitions x
            WHERE x.queue_id = p_queue AND x.consumer_group = r.consumer_group ORDER BY x.oldest_unread_at OFFSET p_kept - 1 LIMIT 1;
            DELETE FROM queen.lagging_partitions x
            WHERE x.queue_id = p_queue AND x.consumer_group = r.consumer_group AND x.partition_id > v_after AND x.partition_id <= v_end
              AND x.partition_id <> ALL (coalesce(r.chosen, '{}'));
            INSERT INTO queen.lagging_partitions AS x (queue_id, consumer_group, partition_id, oldest_unread_at)
            SELECT p_queue, r.consumer_group, t.id, t.at FROM unnest(r.chosen, r.chosen_at) AS t (id, at) WHERE v_bound IS NULL OR t.at <= v_bound
            ON CONFLICT (queue_id, consumer_group, partition_id) DO UPDATE SET oldest_unread_at = excluded.oldest_unread_at
            WHERE x.oldest_unread_at <> excluded.oldest_unread_at;
        END IF;
        INSERT INTO queen.page_statistics AS x (queue_id, after, consumer_group, measured_at, partitions, total, failed, pending, processing, lagging,
                                                unread, leases, consumed, last_message_at, oldest_unread_at, last_consumed_at)
        VALUES (p_queue, v_after, r.consumer_group, clock_timestamp(), r.partitions, r.total, r.failed, r.pending, r.processing, r.lagging,
                r.unread, r.leases, r.consumed, r.last_message_at, r.oldest_unread_at, r.last_consumed_at)
        ON CONFLICT (queue_id, after, consumer_group) DO UPDATE SET
            measured_at = excluded.measured_at, partitions = excluded.partitions, total = excluded.total, failed = excluded.failed,
            pending = excluded.pending, processing = excluded.processing, lagging = excluded.lagging, unread = excluded.unread,
            leases = excluded.leases, consumed = excluded.consumed, last_message_at = excluded.last_message_at,
            oldest_unread_at = excluded.oldest_unread_at, last_consumed_at = excluded.last_consumed_at;
    END LOOP;
    DELETE FROM queen.page_statistics s
    WHERE s.queue_id = p_queue AND s.after = v_after AND s.consumer_group <> '' AND s.consumer_group <> ALL (v_groups);
    DELETE FROM queen.lagging_partitions x
    WHERE x.queue_id = p_queue AND x.partition_id > v_after AND x.partition_id <= v_end AND x.consumer_group <> ALL (v_groups);

    -- Half a page for both, so that they are not divided again soon.
    SELECT s.after INTO v_before FROM (
        SELECT s.after, s.partitions FROM queen.page_statistics s
        WHERE s.queue_id = p_queue AND s.after < v_after AND s.consumer_group = '' ORDER BY s.after DESC LIMIT 1
    ) s WHERE s.partitions + v_partitions <= p_size / 2;
    IF FOUND THEN
        DELETE FROM queen.page_statistics s WHERE s.queue_id = p_queue AND s.after = v_after;
        UPDATE queen.page_statistics s SET measured_at = '-infinity' WHERE s.queue_id = p_queue AND s.after = v_before AND s.consumer_group = '';
    END IF;
    SELECT count(*) > 0, coalesce(bool_or(s.measured_at = '-infinity'), false) INTO more, unmeasured FROM (
        SELECT s.measured_at FROM queen.page_statistics s
        WHERE s.queue_id = p_queue AND s.consumer_group = '' AND s.measured_at < p_before ORDER BY s.measured_at LIMIT 1
    ) s;
END $$;
