-- Copy messages of one (partition, group) to the dead letters, and write them to its account. p_failures says how often each had
-- failed before, null for never; p_failed whether a delivery has failed now, too. Takes no locks beyond the new rows and the account's.
CREATE OR REPLACE FUNCTION queen.bury(
    p_partition uuid, p_group text, p_offsets int8multirange, p_error text, p_failures queen.failures[],
    p_failed boolean DEFAULT false)
RETURNS void LANGUAGE sql AS $$
    WITH written AS (
        INSERT INTO queen.dead_letter_queue
            (queue_id, partition_id, partition_name, consumer_group, message_id, transaction_id, "offset", trace_id,
             producer_sub, is_encrypted, payload, error_message, retry_count, attempts, created_at, headers)
        SELECT p.queue_id, p.id, p.name, p_group, m.id, m.transaction_id, m."offset", m.trace_id,
               m.producer_sub, m.is_encrypted, m.payload, p_error,
               f.before, f.before + p_failed::integer, m.created_at, m.headers
        FROM queen.partitions p
        JOIN queen.messages m ON m.partition_id = p.id
        CROSS JOIN LATERAL (
            SELECT CASE WHEN p_failures IS NULL THEN 0 ELSE queen.times_failed(p_failures, m."offset") END AS before
        ) f
        WHERE p.id = p_partition AND p_offsets @> m."offset"
          AND m."offset" >= lower(p_offsets) AND m."offset" < upper(p_offsets)
        ON CONFLICT (partition_id, consumer_group, message_id) DO UPDATE
        SET error_message = excluded.error_message, retry_count = excluded.retry_count, attempts = excluded.attempts,
            failed_at = excluded.failed_at
        -- A row that was there already has a locker or deleter in xmax.
        RETURNING queue_id, "offset", xmax = 0 AS fresh
    )
    INSERT INTO queen.dead_letter_accounts AS a (partition_id, consumer_group, queue_id, letters, offsets)
    SELECT p_partition, p_group, queue_id, count(*), sum("offset") FROM written WHERE fresh GROUP BY queue_id
    ON CONFLICT (partition_id, consumer_group) DO UPDATE
    SET letters = a.letters + excluded.letters, offsets = a.offsets + excluded.offsets
$$;
