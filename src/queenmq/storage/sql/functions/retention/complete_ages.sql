-- Write down how old the contents of partitions are of which that is not known (queen.partition_ages): they were made, or got their first
-- message, through a server of an earlier version before the triggers were there. Up to p_limit partitions after p_after.
-- Returns where to go on, null at the end. Locks: rows of partition_lookup by partition, then rows of partition_ages.
CREATE OR REPLACE FUNCTION queen.complete_ages(p_after uuid, p_limit integer) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_partitions uuid[];
BEGIN
    v_partitions := ARRAY(
        SELECT l.partition_id FROM queen.partition_lookup l
        LEFT JOIN queen.partition_ages a ON a.partition_id = l.partition_id
        WHERE l.partition_id > coalesce(p_after, '00000000-0000-0000-0000-000000000000')
          AND (a.partition_id IS NULL OR (a.oldest_at IS NULL AND l.first_offset <= l.last_offset))
        ORDER BY l.partition_id LIMIT p_limit);
    PERFORM 1 FROM queen.partition_lookup WHERE partition_id = ANY (v_partitions) ORDER BY partition_id FOR NO KEY UPDATE;
    INSERT INTO queen.partition_ages (partition_id, queue_id, idle_since)
    SELECT p.id, p.queue_id, p.created_at FROM queen.partitions p WHERE p.id = ANY (v_partitions) ORDER BY p.id
    ON CONFLICT (partition_id) DO NOTHING;
    PERFORM queen.note_age(t.id) FROM unnest(v_partitions) AS t (id);
    RETURN v_partitions[cardinality(v_partitions)];
END $$;
