-- The last offset up to which everything is finished, if everything is up to p_position and so is what is in p_done.
CREATE OR REPLACE FUNCTION queen.end_of_done(p_done int8multirange, p_position bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((SELECT upper(d) - 1 FROM unnest(p_done) AS d WHERE d @> p_position + 1), p_position)
$$;
