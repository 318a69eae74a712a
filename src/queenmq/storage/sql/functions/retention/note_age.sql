-- Write down how old the contents of a partition are now (queen.partition_ages), after messages of it were deleted.
-- The caller holds the partition's head. Locks: the row of partition_ages.
CREATE OR REPLACE FUNCTION queen.note_age(p_partition uuid) RETURNS void LANGUAGE sql AS $$
    UPDATE queen.partition_ages a
    SET oldest_at = n.oldest_at, kept_at = NULL,
        unread_at = CASE WHEN n.oldest_at IS NOT NULL THEN greatest(a.unread_at, n.oldest_at) END,
        idle_since = CASE WHEN n.oldest_at IS NULL THEN n.written_at END
    FROM (
        SELECT greatest(l.last_message_at, p.created_at) AS written_at,
               -- Offsets without a message (deleted by hand) are no older than the last one.
               CASE WHEN l.first_offset <= l.last_offset THEN coalesce((
                   SELECT m.created_at FROM queen.messages m
                   WHERE m.partition_id = p_partition AND m."offset" >= l.first_offset ORDER BY m."offset" LIMIT 1), l.last_message_at) END AS oldest_at
        FROM queen.partition_lookup l JOIN queen.partitions p ON p.id = l.partition_id
        WHERE l.partition_id = p_partition
    ) n
    WHERE a.partition_id = p_partition
$$;
