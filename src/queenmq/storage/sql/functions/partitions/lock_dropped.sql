-- One transaction at a time writes to queen.dropped_partitions, so that its ids ascend in the order of the commits and a reader that
-- remembers the newest one it has seen misses none. Taken after every other lock.
CREATE OR REPLACE FUNCTION queen.lock_dropped() RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('queen.dropped_partitions', 0))
$$;
