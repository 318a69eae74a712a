-- Delete up to p_limit partitions that are empty, were not written since p_before and have no operation to do.
-- Returns their names.
-- Locks: heads that are free (SKIP LOCKED). Operations are looked for under them, with a newer snapshot: they are made there.
CREATE OR REPLACE FUNCTION queen.drop_idle_partitions(p_before timestamptz, p_limit integer)
RETURNS TABLE (queue_name text, partition_name text) LANGUAGE plpgsql AS $$
DECLARE
    v_idle uuid[];
BEGIN
    v_idle := ARRAY(
        SELECT l.partition_id FROM queen.partition_lookup l
        JOIN queen.partitions p ON p.id = l.partition_id
        JOIN queen.queues q ON q.id = p.queue_id AND q.name IS NOT NULL
        WHERE l.first_offset > l.last_offset AND coalesce(l.last_message_at, p.created_at) < p_before
          AND p.created_at < p_before
        LIMIT p_limit FOR UPDATE OF l SKIP LOCKED);
    RETURN QUERY
        WITH dropped AS (
            DELETE FROM queen.partitions p
            WHERE p.id = ANY (v_idle) AND NOT EXISTS (
                SELECT 1 FROM queen.operation_queue o
                WHERE o.partition_id = p.id AND o.status IN ('pending', 'processing'))
            RETURNING p.queue_id, p.name
        )
        SELECT q.name, d.name FROM dropped d JOIN queen.queues q ON q.id = d.queue_id;
END $$;
