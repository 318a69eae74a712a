-- Whether the limits of a key allow a group nothing just now (p_leased: no lease; a pop with autoAck needs none). It is not asked under a lock.
CREATE OR REPLACE FUNCTION queen.key_is_full(p_queue uuid, p_group text, p_key text, p_leased boolean) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM queen.limits l
        CROSS JOIN LATERAL (
            SELECT * FROM queen.limit_keys x
            WHERE x.queue_id = p_queue AND x.scope = l.consumer_group AND x.key = p_key ORDER BY x.generation DESC LIMIT 1
        ) s
        WHERE l.queue_id = p_queue AND l.consumer_group IN ('', p_group)
          AND (queen.tokens_at(s.tokens, l.key_rate, l.key_burst, s.refilled_at, clock_timestamp()) < 0.999999
               OR (p_leased AND cardinality(s.partitions) >= l.key_leases AND l.key_leases <= (
                   SELECT cardinality(a.partitions) FROM queen.living_leases(s.partitions, s.groups, clock_timestamp()) a))));
END $$;
