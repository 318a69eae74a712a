-- How often the message at an offset has failed, by the column `failures` of a row of partition_consumers.
CREATE OR REPLACE FUNCTION queen.times_failed(p_failures queen.failures[], p_offset bigint)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((SELECT f.times FROM unnest(p_failures) AS f WHERE f.offsets @> p_offset), 0)
$$;
