-- How many integers a multirange has.
CREATE OR REPLACE FUNCTION queen.measure(p_ranges int8multirange) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_ranges IS NULL OR isempty(p_ranges) THEN 0
                ELSE (SELECT sum(upper(r) - lower(r))::bigint FROM unnest(p_ranges) AS r) END
$$;
