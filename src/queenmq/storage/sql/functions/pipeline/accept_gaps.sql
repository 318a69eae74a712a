-- Take every offset that is missing between the first and the last message of a queue's partitions (of one, by name, if given) for deleted on
-- purpose, and return them: for messages that were deleted past Queen's functions, or are lost and known to be.
-- Reads the whole index of every partition, without locks: a gap is never filled. Only the command line calls it.
-- Locks: the queue FOR KEY SHARE; then the heads of the partitions that have gaps, by partition.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.accept_gaps(p_queue text, p_partition text)
RETURNS TABLE (partition_name text, first_offset bigint, last_offset bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_gaps  jsonb;
    v_heads uuid[];
    v_gap   record;
BEGIN
    PERFORM 1 FROM queen.queues WHERE name = p_queue FOR KEY SHARE;
    SELECT jsonb_agg(jsonb_build_object('id', p.id, 'name', p.name, 'first', m.first_offset, 'last', m.last_offset)
                     ORDER BY p.name, m.first_offset) INTO v_gaps
    FROM queen.queues q
    JOIN queen.partition_lookup l ON l.queue_id = q.id
    JOIN queen.partitions p ON p.id = l.partition_id
    CROSS JOIN LATERAL queen.missing_offsets(p.id, l.first_offset, l.last_offset) m
    WHERE q.name = p_queue AND (p_partition IS NULL OR p.name = p_partition);

    v_heads := ARRAY(
        SELECT l.partition_id FROM queen.partition_lookup l
        WHERE l.partition_id IN (SELECT (g ->> 'id')::uuid FROM jsonb_array_elements(v_gaps) AS g)
        ORDER BY l.partition_id FOR NO KEY UPDATE);
    FOR v_gap IN
        SELECT g.* FROM jsonb_to_recordset(v_gaps) AS g (id uuid, name text, first bigint, last bigint)
        WHERE g.id = ANY (v_heads)
    LOOP
        PERFORM queen.note_deleted(v_gap.id, v_gap.first, v_gap.last);
        partition_name := v_gap.name;
        first_offset := v_gap.first;
        last_offset := v_gap.last;
        RETURN NEXT;
    END LOOP;
    UPDATE queen.partition_lookup l SET holes = k.known
    FROM (
        SELECT h.partition_id, queen.count_offsets(queen.deleted_within(h.partition_id, h.first_offset, h.last_offset)) AS known
        FROM queen.partition_lookup h WHERE h.partition_id = ANY (v_heads)
    ) k
    WHERE l.partition_id = k.partition_id AND l.holes < k.known;
END $$;
