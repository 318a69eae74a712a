-- The tag of the consumer to which a lease was given: 32 bits of the lease's id (see `lease_for` in ids.py). Null if the server did not know it.
CREATE OR REPLACE FUNCTION queen.consumer_of(p_lease uuid)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN substr(p_lease::text, 15, 1) = '8'
                THEN ('x' || substr(p_lease::text, 16, 3) || substr(p_lease::text, 21, 3) || substr(p_lease::text, 25, 2))::bit(32)::bigint END
$$;
