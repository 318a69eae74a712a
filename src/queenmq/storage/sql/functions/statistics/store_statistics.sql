-- Replace the figures of a queue by what a walk over it has found. Arrays of groups, of lagging and of recent
-- partitions run in parallel. Locks: the rows of the queue's statistics, under an advisory lock for the queue, which
-- is not waited for: two servers that measured at the same time have the same figures. Returns whether it was written.
-- p_unread is null for servers of an older version, which counted everything unread as lag.
CREATE OR REPLACE FUNCTION queen.store_statistics(
    p_queue uuid, p_partitions bigint, p_total bigint, p_pending bigint, p_processing bigint, p_failed bigint,
    p_last_message_at timestamptz, p_cost_ms double precision,
    p_groups text[], p_group_partitions bigint[], p_lagging bigint[], p_lag bigint[], p_leases bigint[], p_leased bigint[],
    p_consumed bigint[], p_oldest timestamptz[], p_last_consumed timestamptz[],
    p_behind_groups text[], p_behind uuid[], p_behind_at timestamptz[], p_recent uuid[], p_recent_at timestamptz[],
    p_unread bigint[] DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('queen.statistics ' || p_queue, 0)) THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM queen.queues WHERE id = p_queue FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;

    INSERT INTO queen.queue_statistics AS s (queue_id, partitions, total, pending, processing, failed, consumed, leases,
                                             dead_letters, last_message_at, reckoned_at, cost_ms)
    SELECT p_queue, p_partitions, p_total, p_pending, p_processing, p_failed, coalesce(sum(g.consumed), 0),
           coalesce(sum(g.leases), 0),
           (SELECT coalesce(sum(d.letters), 0) FROM queen.dead_letter_counts d WHERE d.queue_id = p_queue), p_last_message_at, clock_timestamp(), p_cost_ms
    FROM unnest(p_consumed, p_leases) AS g (consumed, leases)
    ON CONFLICT (queue_id) DO UPDATE SET
        partitions = excluded.partitions, total = excluded.total, pending = excluded.pending,
        processing = excluded.processing, failed = excluded.failed, consumed = excluded.consumed,
        leases = excluded.leases, dead_letters = excluded.dead_letters, last_message_at = excluded.last_message_at, reckoned_at = excluded.reckoned_at,
        cost_ms = excluded.cost_ms;

    DELETE FROM queen.group_statistics WHERE queue_id = p_queue AND NOT consumer_group = ANY (p_groups);
    INSERT INTO queen.group_statistics AS s (queue_id, consumer_group, partitions, lagging, lag, leases, leased, consumed,
                                             oldest_unread_at, last_consumed_at, unread)
    SELECT p_queue, t.* FROM unnest(p_groups, p_group_partitions, p_lagging, p_lag, p_leases, p_leased, p_consumed,
                                    p_oldest, p_last_consumed, coalesce(p_unread, p_lag)) AS t
    ON CONFLICT (queue_id, consumer_group) DO UPDATE SET
        partitions = excluded.partitions, lagging = excluded.lagging, lag = excluded.lag, leases = excluded.leases,
        leased = excluded.leased, consumed = excluded.consumed, oldest_unread_at = excluded.oldest_unread_at,
        last_consumed_at = excluded.last_consumed_at, unread = excluded.unread;

    DELETE FROM queen.lagging_partitions l WHERE l.queue_id = p_queue AND NOT EXISTS (
        SELECT 1 FROM unnest(p_behind_groups, p_behind) AS t (grp, part)
        WHERE t.grp = l.consumer_group AND t.part = l.partition_id);
    INSERT INTO queen.lagging_partitions AS l (queue_id, consumer_group, partition_id, oldest_unread_at)
    SELECT p_queue, t.* FROM unnest(p_behind_groups, p_behind, p_behind_at) AS t
    ON CONFLICT (queue_id, consumer_group, partition_id) DO UPDATE SET oldest_unread_at = excluded.oldest_unread_at
    WHERE l.oldest_unread_at <> excluded.oldest_unread_at;

    DELETE FROM queen.recent_partitions WHERE queue_id = p_queue AND NOT partition_id = ANY (p_recent);
    INSERT INTO queen.recent_partitions AS r (queue_id, partition_id, last_message_at)
    SELECT p_queue, t.* FROM unnest(p_recent, p_recent_at) AS t
    ON CONFLICT (queue_id, partition_id) DO UPDATE SET last_message_at = excluded.last_message_at
    WHERE r.last_message_at <> excluded.last_message_at;
    RETURN true;
END $$;
