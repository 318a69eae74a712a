-- The column `skipped` of a row of partition_consumers without what is finished or delivered: up to p_position, and at p_offsets. Null if
-- nothing is left. What is skipped and not finished must stay in it while a lease is out that lies around it: queen.reached goes by it.
CREATE OR REPLACE FUNCTION queen.still_skipped(p_skipped queen.skipped[], p_position bigint, p_offsets int8multirange)
RETURNS queen.skipped[] LANGUAGE sql IMMUTABLE COST 1 AS $$
    SELECT array_agg((s.until, x.offsets, s.parks)::queen.skipped ORDER BY s.until)
    FROM unnest(p_skipped) AS s
    CROSS JOIN LATERAL (SELECT s.offsets * int8multirange(int8range(p_position + 1, NULL)) - p_offsets AS offsets) x
    WHERE NOT isempty(x.offsets)
$$;
