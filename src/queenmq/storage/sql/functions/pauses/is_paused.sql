-- Whether a partition is paused for a group: itself, or with its queue or group.
CREATE OR REPLACE FUNCTION queen.is_paused(p_queue uuid, p_partition uuid, p_group text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT f.everything OR coalesce(p_partition = ANY (f.partitions), false) FROM queen.paused_for(p_queue, p_group) f
$$;
