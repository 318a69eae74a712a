-- How often a message that a group has not finished has failed for it. Everything that is shown to users takes the number from here. Locks nothing.
CREATE OR REPLACE FUNCTION queen.failed_attempts(p_row queen.partition_consumers, p_offset bigint)
RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_row.failures IS NULL THEN 0 ELSE queen.times_failed(p_row.failures, p_offset) END
$$;
