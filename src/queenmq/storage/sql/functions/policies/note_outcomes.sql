-- Messages of a group were completed or have failed: open the breaker of the group if too many of the last ones have failed, and close it or let it
-- wait again if they are of the batch that it has let through. p_leases are those under which they were delivered. Does nothing for a group without one.
-- Never waits: what two transactions would count for a group at the same moment only one of them counts. It is a measure, not an account.
-- Locks: the row of queen.breakers, or an advisory lock if it is still to be made; each only if it is free.
CREATE OR REPLACE FUNCTION queen.note_outcomes(p_queue uuid, p_group text, p_leases uuid[], p_completed bigint, p_failed bigint)
RETURNS void LANGUAGE plpgsql COST 1 AS $$
DECLARE
    v_rule    queen.policies;
    v_breaker queen.breakers;
    v_now     timestamptz := clock_timestamp();
    v_failed  integer;
BEGIN
    SELECT * INTO v_rule FROM queen.policies y
    WHERE y.queue_id = p_queue AND y.consumer_group IN ('', p_group) AND y.breaker IS NOT NULL ORDER BY y.consumer_group DESC LIMIT 1;
    IF NOT FOUND OR p_completed + p_failed = 0 THEN
        RETURN;
    END IF;
    SELECT * INTO v_breaker FROM queen.breakers b WHERE b.queue_id = p_queue AND b.consumer_group = p_group;
    IF NOT FOUND THEN
        IF NOT pg_try_advisory_xact_lock(hashtextextended('queen.breakers ' || p_group, hashtext(p_queue::text))) THEN
            RETURN;
        END IF;
        INSERT INTO queen.breakers (queue_id, consumer_group) VALUES (p_queue, p_group) ON CONFLICT DO NOTHING;
    ELSIF v_breaker.opened_at IS NOT NULL AND v_breaker.probe_lease = ANY (p_leases) IS NOT TRUE THEN
        RETURN;     -- leases that were out before it opened say nothing about how things are now
    END IF;
    SELECT * INTO v_breaker FROM queen.breakers b WHERE b.queue_id = p_queue AND b.consumer_group = p_group FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_breaker.opened_at IS NOT NULL THEN
        UPDATE queen.breakers b
        SET probe_lease = NULL, opened_at = CASE WHEN p_failed > 0 THEN b.opened_at END,
            probe_at = CASE WHEN p_failed > 0 THEN v_now + make_interval(secs => v_rule.breaker_pause_ms / 1000.0) END
        WHERE b.queue_id = p_queue AND b.consumer_group = p_group;
        RETURN;
    END IF;
    v_breaker.outcomes := right(
        v_breaker.outcomes || repeat('0', least(p_completed, v_rule.breaker_of)::integer)
        || repeat('1', least(p_failed, v_rule.breaker_of)::integer), v_rule.breaker_of);
    v_failed := length(replace(v_breaker.outcomes, '0', ''));
    IF v_failed > v_rule.breaker_failures THEN
        UPDATE queen.breakers b
        SET outcomes = '', opened_at = v_now, probe_at = v_now + make_interval(secs => v_rule.breaker_pause_ms / 1000.0), probe_lease = NULL,
            reason = format('%s of the last %s messages failed', v_failed, length(v_breaker.outcomes))
        WHERE b.queue_id = p_queue AND b.consumer_group = p_group;
    ELSE
        UPDATE queen.breakers b SET outcomes = v_breaker.outcomes WHERE b.queue_id = p_queue AND b.consumer_group = p_group;
    END IF;
END $$;
