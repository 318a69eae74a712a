-- Offsets between two, both included, that are neither stored nor known to be deleted, as ranges in their order: lost, if the partition
-- has them.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.missing_offsets(p_partition uuid, p_first bigint, p_last bigint)
RETURNS TABLE (first_offset bigint, last_offset bigint) LANGUAGE sql STABLE AS $$
    SELECT lower(r), upper(r) - 1
    FROM (
        SELECT s."offset", lag(s."offset", 1, p_first - 1) OVER (ORDER BY s."offset") AS before
        FROM (
            SELECT m."offset" FROM queen.messages m
            WHERE m.partition_id = p_partition AND m."offset" >= p_first AND m."offset" <= p_last
            UNION ALL SELECT p_last + 1
        ) s
    ) g
    CROSS JOIN LATERAL unnest(
        int8multirange(int8range(g.before + 1, g."offset")) - queen.deleted_within(p_partition, g.before + 1, g."offset" - 1)) AS r
    WHERE g."offset" > g.before + 1
    ORDER BY 1
$$;
