-- How many offsets a set of ranges has; 0 for null. Locks nothing.
-- Public: the data pipeline calls it, so that its name, its parameters and its result stay as they are.
CREATE OR REPLACE FUNCTION queen.count_offsets(p_offsets int8multirange) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_offsets IS NULL OR isempty(p_offsets) THEN 0
                ELSE (SELECT sum(upper(r) - lower(r))::bigint FROM unnest(p_offsets) AS r) END
$$;
