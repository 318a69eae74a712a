-- Of the partitions that the limit of a key was used for, each with its group (see queen.limit_keys), those that are leased, and when the first lease ends.
CREATE OR REPLACE FUNCTION queen.living_leases(
    p_partitions uuid[], p_groups text[], p_now timestamptz, OUT partitions uuid[], OUT groups text[], OUT ends_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(array_agg(t.part), '{}'), coalesce(array_agg(t.grp), '{}'), min(c.lease_expires_at) INTO partitions, groups, ends_at
    FROM (SELECT DISTINCT u.part, u.grp FROM unnest(p_partitions, p_groups) AS u (part, grp)) t
    CROSS JOIN LATERAL (
        SELECT x.lease_id, x.lease_expires_at FROM queen.partition_consumers x
        WHERE x.partition_id = t.part AND x.consumer_group = t.grp ORDER BY x.generation DESC LIMIT 1
    ) c
    WHERE c.lease_id IS NOT NULL AND c.lease_expires_at > p_now;
END $$;
