-- Up to which offset every group of a queue has finished the messages of a partition; 0 if no group reads it.
-- p_begun are groups that have popped only partitions by name. Where they have no place yet they have read nothing: their next pop of any
-- partition gets what is there. Locks nothing.
CREATE OR REPLACE FUNCTION queen.read_by_all(p_queue text, p_partition uuid, p_begun text[]) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT least(
        coalesce((SELECT min(c.position) FROM queen.partition_consumers c WHERE c.partition_id = p_partition), 0),
        (SELECT min(CASE WHEN s.since IS NULL THEN 0 ELSE queen.offset_before(p_partition, s.since) END)
         FROM unnest(p_begun) AS b (name)
         CROSS JOIN LATERAL (SELECT p.name FROM queen.partitions p WHERE p.id = p_partition LIMIT 1) p
         CROSS JOIN LATERAL (SELECT queen.start_of(p_queue, p.name, b.name, false, clock_timestamp()) AS since) s
         WHERE NOT EXISTS (
             SELECT 1 FROM queen.partition_consumers c WHERE c.partition_id = p_partition AND c.consumer_group = b.name)))
$$;
