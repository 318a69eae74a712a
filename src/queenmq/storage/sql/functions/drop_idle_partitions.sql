-- Delete up to p_limit partitions that are empty and were not written since p_before. Returns their names.
-- Locks: heads that are free (SKIP LOCKED).
CREATE OR REPLACE FUNCTION queen.drop_idle_partitions(p_before timestamptz, p_limit integer)
RETURNS TABLE (queue_name text, partition_name text) LANGUAGE sql AS $$
    WITH idle AS (
        SELECT l.partition_id FROM queen.partition_lookup l
        JOIN queen.partitions p ON p.id = l.partition_id
        WHERE l.first_offset > l.last_offset AND coalesce(l.last_message_at, p.created_at) < p_before
          AND p.created_at < p_before
        LIMIT p_limit FOR UPDATE OF l SKIP LOCKED
    ), dropped AS (
        DELETE FROM queen.partitions p USING idle i WHERE p.id = i.partition_id RETURNING p.queue_id, p.name
    )
    SELECT q.name, d.name FROM dropped d JOIN queen.queues q ON q.id = d.queue_id
$$;
