-- The offsets that a row of partition_consumers (its column `skipped`) keeps back at a moment.
CREATE OR REPLACE FUNCTION queen.kept_back(p_skipped queen.skipped[], p_now timestamptz) RETURNS int8multirange LANGUAGE sql IMMUTABLE COST 1 AS $$
    SELECT coalesce(range_agg(CASE WHEN s.parks THEN int8range(lower(r), NULL) ELSE r END), '{}')
    FROM unnest(p_skipped) AS s, unnest(s.offsets) AS r WHERE s.until > p_now
$$;
