-- A time-ordered identifier (RFC 9562 version 7, with microseconds where the standard allows for them). Partitions that were made together
-- lie together in every index, which is how they are mostly used: PostgreSQL 18 has its own, older ones do not.
-- Public: users call it, too, for rows that they insert themselves.
CREATE OR REPLACE FUNCTION queen.uuid7() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(t.us / 1000), 12, '0') || '7' || lpad(to_hex(t.us % 1000 * 4096 / 1000), 3, '0')
            || substr(gen_random_uuid()::text, 20))::uuid      -- from the variant on
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) t
$$;
