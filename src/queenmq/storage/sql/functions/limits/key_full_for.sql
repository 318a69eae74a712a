-- For how many seconds the limits of a key allow a group nothing if no lease ends before (p_leased: no lease; a pop with autoAck needs none); null if they
-- allow something now. It is not asked under a lock.
CREATE OR REPLACE FUNCTION queen.key_full_for(p_queue uuid, p_group text, p_key text, p_leased boolean)
RETURNS double precision LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN (
        SELECT max(greatest(
            CASE WHEN n.tokens < 0.999999 THEN (1 - n.tokens) / l.key_rate END,
            CASE WHEN p_leased AND cardinality(s.partitions) >= l.key_leases THEN (
                SELECT extract(epoch FROM a.ends_at - v_now)::double precision FROM queen.living_leases(s.partitions, s.groups, v_now) a
                WHERE cardinality(a.partitions) >= l.key_leases) END))
        FROM queen.limits l
        CROSS JOIN LATERAL (
            SELECT * FROM queen.limit_keys x
            WHERE x.queue_id = p_queue AND x.scope = l.consumer_group AND x.key = p_key ORDER BY x.generation DESC LIMIT 1
        ) s
        CROSS JOIN LATERAL (SELECT queen.tokens_at(s.tokens, l.key_rate, l.key_burst, s.refilled_at, v_now) AS tokens) n
        WHERE l.queue_id = p_queue AND l.consumer_group IN ('', p_group));
END $$;
