-- Delete up to p_limit partitions that are empty, were not written since p_before and have no operation to do, and write down how far they
-- had come. A push that was accepted and has failed may still be done: its messages would go with the partition. Records of what was dropped
-- are kept for p_kept; of what is older, the newest of each queue stays, as a mark that there were others.
-- Returns their names.
-- Locks: partitions, heads and rows of groups that are free (SKIP LOCKED), then queen.lock_dropped. Operations are searched under them, with
-- a newer snapshot: they are made there.
CREATE OR REPLACE FUNCTION queen.drop_idle_partitions(
    p_before timestamptz, p_limit integer, p_kept interval DEFAULT interval '90 days')
RETURNS TABLE (queue_name text, partition_name text) LANGUAGE plpgsql AS $$
DECLARE
    v_idle uuid[];
BEGIN
    -- MATERIALIZED: only those that are idle for so long are read, however many partitions there are.
    v_idle := ARRAY(
        WITH aged AS MATERIALIZED (
            SELECT a.partition_id FROM queen.partition_ages a WHERE a.idle_since < p_before
              AND NOT EXISTS (
                  SELECT 1 FROM queen.operation_queue o
                  WHERE o.partition_id = a.partition_id AND o.status IN ('pending', 'processing', 'failed'))
            ORDER BY a.idle_since LIMIT p_limit
        )
        SELECT l.partition_id FROM aged
        JOIN queen.partition_lookup l ON l.partition_id = aged.partition_id
        JOIN queen.partitions p ON p.id = l.partition_id
        JOIN queen.queues q ON q.id = p.queue_id AND q.name IS NOT NULL
        WHERE l.first_offset > l.last_offset AND coalesce(l.last_message_at, p.created_at) < p_before
          AND p.created_at < p_before
        FOR UPDATE OF l, p SKIP LOCKED);
    v_idle := ARRAY(SELECT t.id FROM unnest(v_idle) AS t (id) WHERE queen.groups_are_free(t.id, 9223372036854775806));
    IF cardinality(v_idle) > 0 THEN
        PERFORM queen.lock_dropped();
        RETURN QUERY
            WITH dropped AS (
                DELETE FROM queen.partitions p
                WHERE p.id = ANY (v_idle) AND NOT EXISTS (
                    SELECT 1 FROM queen.operation_queue o
                    WHERE o.partition_id = p.id AND o.status IN ('pending', 'processing', 'failed'))
                RETURNING p.id, p.queue_id, p.number, p.name
            ), noted AS (
                INSERT INTO queen.dropped_partitions (queue_id, number, name, last_offset)
                SELECT d.queue_id, d.number, d.name, coalesce((
                    -- Messages at the end that were deleted by hand are nobody's loss.
                    SELECT lower(r) - 1 FROM unnest(queen.deleted_within(d.id, 1, l.last_offset)) AS r
                    WHERE r @> l.last_offset), l.last_offset)
                FROM dropped d JOIN queen.partition_lookup l ON l.partition_id = d.id
            )
            SELECT q.name, d.name FROM dropped d JOIN queen.queues q ON q.id = d.queue_id;
    END IF;

    UPDATE queen.dropped_partitions SET forgotten = true
    WHERE id IN (
        SELECT d.id FROM queen.dropped_partitions d
        WHERE NOT d.forgotten AND d.dropped_at < clock_timestamp() - p_kept ORDER BY d.dropped_at LIMIT p_limit);
    IF FOUND THEN
        DELETE FROM queen.dropped_partitions d
        WHERE d.forgotten AND EXISTS (
            SELECT 1 FROM queen.dropped_partitions n WHERE n.queue_id = d.queue_id AND n.forgotten AND n.id > d.id);
    END IF;
END $$;
