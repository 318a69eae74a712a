-- The column `failures` of a row of partition_consumers after the messages at p_failed have failed once more, without those that are
-- finished: up to p_position and at p_done. Null if nothing is left.
CREATE OR REPLACE FUNCTION queen.count_failures(
    p_failures queen.failures[], p_failed int8multirange, p_position bigint, p_done int8multirange)
RETURNS queen.failures[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg((x.times, x.offsets)::queen.failures ORDER BY x.times)
    FROM (
        SELECT f.times, range_agg(r) * int8multirange(int8range(p_position + 1, NULL)) - p_done AS offsets
        FROM (
            SELECT times, offsets - p_failed AS offsets FROM unnest(p_failures)
            UNION ALL
            SELECT times + 1, offsets * p_failed FROM unnest(p_failures)
            UNION ALL
            SELECT 1, p_failed - coalesce((SELECT range_agg(r) FROM unnest(p_failures) AS f, unnest(f.offsets) AS r), '{}')
        ) f, unnest(f.offsets) AS r
        GROUP BY f.times
    ) x
    WHERE NOT isempty(x.offsets)
$$;
