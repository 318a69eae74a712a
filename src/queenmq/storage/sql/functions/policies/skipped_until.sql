-- When the first message that is skipped, stored and not finished may be delivered again, or has expired (p_ttl_s); null if there is none. What lies
-- behind a parked message waits for that one, even if it is due.
CREATE OR REPLACE FUNCTION queen.skipped_until(p_partition uuid, p_position bigint, p_done int8multirange, p_skipped queen.skipped[], p_ttl_s integer)
RETURNS timestamptz LANGUAGE plpgsql STABLE COST 1 AS $$
BEGIN
    RETURN (
        SELECT min(least(x.until, CASE WHEN p_ttl_s > 0 THEN x.created_at + make_interval(secs => p_ttl_s) END)) FROM (
            SELECT s.until, m.created_at, m."offset", min(m."offset") FILTER (WHERE s.parks) OVER () AS parked
            FROM unnest(p_skipped) AS s
            CROSS JOIN LATERAL (
                SELECT m.created_at, m."offset" FROM queen.messages m
                WHERE m.partition_id = p_partition AND s.offsets @> m."offset" AND m."offset" >= lower(s.offsets) AND m."offset" < upper(s.offsets)
                  AND m."offset" > p_position AND NOT p_done @> m."offset"
                ORDER BY m."offset" LIMIT 1
            ) m
        ) x
        WHERE x."offset" <= coalesce(x.parked, x."offset"));
END $$;
