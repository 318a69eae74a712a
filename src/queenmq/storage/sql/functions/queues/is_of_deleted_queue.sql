-- Whether a message, or what the dead letters have of it, is of a deleted queue whose rows are not all removed yet (queen.remove_queue):
-- it counts as not stored.
-- Locks: the queue FOR KEY SHARE, so that it is not deleted before the caller has ended.
CREATE OR REPLACE FUNCTION queen.is_of_deleted_queue(p_partition uuid, p_transaction text) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(bool_or(x.name IS NULL), false) FROM (
        SELECT q.name FROM queen.queues q
        WHERE q.id IN (
            SELECT p.queue_id FROM queen.partitions p WHERE p.id = p_partition
            UNION ALL
            SELECT d.queue_id FROM queen.dead_letter_queue d
            WHERE d.partition_id = p_partition AND d.transaction_id = p_transaction)
        FOR KEY SHARE OF q
    ) x
$$;
