CREATE OR REPLACE FUNCTION queen.count_offsets(p_offsets int8multirange) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(upper(r) - lower(r)), 0)::bigint FROM unnest(p_offsets) AS r
$$;
