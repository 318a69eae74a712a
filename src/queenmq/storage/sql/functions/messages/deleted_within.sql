-- The offsets between two, both included, whose messages are known to be deleted (queen.deleted_offsets).
-- The ranges there do not overlap, so that of those that begin before p_first only the last one can matter.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.deleted_within(p_partition uuid, p_first bigint, p_last bigint)
RETURNS int8multirange LANGUAGE sql STABLE AS $$
    SELECT coalesce(range_agg(int8range(greatest(d.first_offset, p_first), least(d.last_offset, p_last), '[]')), '{}')
    FROM (
        SELECT first_offset, last_offset FROM queen.deleted_offsets
        WHERE partition_id = p_partition AND first_offset BETWEEN p_first AND p_last
        UNION ALL (
            SELECT first_offset, last_offset FROM queen.deleted_offsets
            WHERE partition_id = p_partition AND first_offset < p_first ORDER BY first_offset DESC LIMIT 1)
    ) d
    WHERE d.last_offset >= p_first AND p_first <= p_last
$$;
