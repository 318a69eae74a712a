-- The key of a partition: what its name has before the separator, or all of it; null without a separator.
CREATE OR REPLACE FUNCTION queen.fair_key(p_partition text, p_separator text) RETURNS text LANGUAGE sql IMMUTABLE COST 1 AS $$
    SELECT CASE WHEN p_separator IS NOT NULL THEN split_part(p_partition, p_separator, 1) END
$$;
