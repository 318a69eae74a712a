-- When the server made a lease's id, which is when it was taken: the first 48 bits are milliseconds. Null if it is none that a server has made.
CREATE OR REPLACE FUNCTION queen.leased_since(p_lease uuid)
RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN substr(p_lease::text, 15, 1) IN ('7', '8')
                THEN to_timestamp(('x' || substr(p_lease::text, 1, 8) || substr(p_lease::text, 10, 4))::bit(48)::bigint / 1000.0) END
$$;
