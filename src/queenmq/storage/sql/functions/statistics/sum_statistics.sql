-- Make the statistics of a queue of those of its pages (queen.measure_page), and keep the p_kept partitions of each group that are due longest and
-- those of the queue that were written last. p_cost_ms is what it cost to measure those pages that were measured for it.
-- The rate of a group is that between two sums which are half a minute apart or more.
-- Returns whether it was written: not while a page has never been measured, because the sums would be too low.
-- Locks: as queen.measure_page; who does not get the lock leaves it to the other server.
CREATE OR REPLACE FUNCTION queen.sum_statistics(p_queue uuid, p_cost_ms double precision, p_kept integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_since timestamptz;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('queen.statistics ' || p_queue, 0)) THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM queen.queues WHERE id = p_queue AND name IS NOT NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT min(s.measured_at) INTO v_since FROM queen.page_statistics s WHERE s.queue_id = p_queue AND s.consumer_group = '';
    IF v_since IS NULL OR v_since = '-infinity' THEN
        RETURN false;
    END IF;

    INSERT INTO queen.queue_statistics AS s (queue_id, partitions, total, pending, processing, failed, consumed, leases,
                                             dead_letters, last_message_at, reckoned_at, cost_ms, since)
    SELECT p_queue, sum(x.partitions) FILTER (WHERE x.consumer_group = ''), sum(x.total), sum(x.pending) FILTER (WHERE x.consumer_group = ''),
           sum(x.processing) FILTER (WHERE x.consumer_group = ''), sum(x.failed), sum(x.consumed), sum(x.leases),
           (SELECT coalesce(sum(d.letters), 0) FROM queen.dead_letter_counts d WHERE d.queue_id = p_queue),
           max(x.last_message_at), clock_timestamp(), p_cost_ms, v_since
    FROM queen.page_statistics x WHERE x.queue_id = p_queue
    ON CONFLICT (queue_id) DO UPDATE SET
        partitions = excluded.partitions, total = excluded.total, pending = excluded.pending, processing = excluded.processing,
        failed = excluded.failed, consumed = excluded.consumed, leases = excluded.leases, dead_letters = excluded.dead_letters,
        last_message_at = excluded.last_message_at, reckoned_at = excluded.reckoned_at, cost_ms = excluded.cost_ms, since = excluded.since;

    DELETE FROM queen.group_statistics g WHERE g.queue_id = p_queue AND NOT EXISTS (
        SELECT 1 FROM queen.page_statistics x WHERE x.queue_id = p_queue AND x.consumer_group = g.consumer_group);
    INSERT INTO queen.group_statistics AS g (queue_id, consumer_group, partitions, lagging, lag, leases, leased, consumed,
                                             oldest_unread_at, last_consumed_at, unread, rate_since, rate_consumed)
    SELECT p_queue, x.consumer_group, sum(x.partitions), sum(x.lagging), sum(x.pending), sum(x.leases), sum(x.processing), sum(x.consumed),
           min(x.oldest_unread_at), max(x.last_consumed_at), sum(x.unread), clock_timestamp(), sum(x.consumed)
    FROM queen.page_statistics x WHERE x.queue_id = p_queue AND x.consumer_group <> '' GROUP BY x.consumer_group
    ON CONFLICT (queue_id, consumer_group) DO UPDATE SET
        partitions = excluded.partitions, lagging = excluded.lagging, lag = excluded.lag, leases = excluded.leases,
        leased = excluded.leased, consumed = excluded.consumed, oldest_unread_at = excluded.oldest_unread_at,
        last_consumed_at = excluded.last_consumed_at, unread = excluded.unread,
        -- Partitions that are deleted take their counts with them: then it begins anew.
        finished_per_s = CASE WHEN excluded.consumed < g.rate_consumed THEN NULL
                              WHEN g.rate_since <= excluded.rate_since - interval '30 seconds'
                              THEN (excluded.consumed - g.rate_consumed) / extract(epoch FROM excluded.rate_since - g.rate_since)
                              ELSE g.finished_per_s END,
        (rate_since, rate_consumed) = (
            SELECT CASE WHEN b.goes_on THEN g.rate_since ELSE excluded.rate_since END, CASE WHEN b.goes_on THEN g.rate_consumed ELSE excluded.consumed END
            FROM (SELECT excluded.consumed >= g.rate_consumed
                         AND g.rate_since > excluded.rate_since - interval '30 seconds' AND g.rate_since <= excluded.rate_since AS goes_on) b);

    DELETE FROM queen.lagging_partitions l USING (
        SELECT x.consumer_group, x.partition_id, row_number() OVER (PARTITION BY x.consumer_group ORDER BY x.oldest_unread_at, x.partition_id) AS i
        FROM queen.lagging_partitions x WHERE x.queue_id = p_queue
    ) t
    WHERE t.i > p_kept AND l.queue_id = p_queue AND l.consumer_group = t.consumer_group AND l.partition_id = t.partition_id;
    DELETE FROM queen.recent_partitions r USING (
        SELECT x.partition_id FROM queen.recent_partitions x
        WHERE x.queue_id = p_queue ORDER BY x.last_message_at DESC, x.partition_id DESC OFFSET p_kept
    ) t
    WHERE r.queue_id = p_queue AND r.partition_id = t.partition_id;
    RETURN true;
END $$;
