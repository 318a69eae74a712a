-- How many stored messages of a partition its slowest group has not finished; all of them if it has no group.
CREATE OR REPLACE FUNCTION queen.unread(l queen.partition_lookup) RETURNS numeric LANGUAGE sql STABLE AS $$
    SELECT greatest(0, l.last_offset - greatest(l.first_offset - 1, coalesce(min(c.position), 0)))::numeric
    FROM queen.partition_consumers c WHERE c.partition_id = l.partition_id
$$;
