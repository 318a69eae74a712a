-- Up to which offset a partition is in every lake that archives its queue; 0 if no lake does.
CREATE OR REPLACE FUNCTION queen.archived_upto(p_queue uuid, p_partition uuid) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(min(coalesce(a.position, 0)), 0)
    FROM queen.archive_lakes l
    LEFT JOIN queen.archive_positions a ON a.lake = l.lake AND a.partition_id = p_partition
    WHERE l.queue_id = p_queue
$$;
