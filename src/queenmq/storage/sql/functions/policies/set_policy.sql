-- Say what a queue does with messages that fail, or one group of it (p_group not empty). Of the parts, retries, breaker and limits, those are set that
-- p_sets_… names; null takes a part back. `changed` is null if there is no such queue. A breaker that changes is closed and begins to count anew.
-- `needs_contract`: `skip` and `park` are refused while servers of the version before may run: they would move positions over what is skipped.
-- Locks: the row of the queue; rows of queen.breakers; what queen.set_limits takes.
CREATE OR REPLACE FUNCTION queen.set_policy(
    p_queue text, p_group text, p_by text,
    p_sets_retry boolean, p_retry text, p_limit integer, p_delays_ms bigint[], p_jitter double precision, p_poison text,
    p_sets_breaker boolean, p_breaker text, p_failures integer, p_of integer, p_pause_ms bigint,
    p_sets_limits boolean, p_limits text, p_leases integer, p_rate double precision, p_burst double precision,
    OUT changed boolean, OUT needs_contract boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue  uuid;
    v_before queen.policies;
    v_limits text;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    changed := false;
    needs_contract := p_sets_retry AND p_poison <> 'block' AND NOT EXISTS (
        -- Recorded by the contract step, or with a new schema: from then on no server runs that does not know the column `skipped`.
        SELECT 1 FROM queen.schema_migrations WHERE version = 29);
    SELECT * INTO v_before FROM queen.policies y WHERE y.queue_id = v_queue AND y.consumer_group = p_group;
    SELECT l.given INTO v_limits FROM queen.limits l WHERE l.queue_id = v_queue AND l.consumer_group = p_group;
    changed := (p_sets_limits AND v_limits IS DISTINCT FROM p_limits) OR (p_sets_retry AND v_before.retry IS DISTINCT FROM p_retry) OR (p_sets_breaker AND v_before.breaker IS DISTINCT FROM p_breaker);
    IF needs_contract OR NOT changed THEN
        RETURN;
    END IF;
    IF p_sets_limits AND v_limits IS DISTINCT FROM p_limits THEN
        PERFORM queen.set_limits(v_queue, p_group, p_by, p_limits, p_leases, p_rate, p_burst);
    END IF;
    IF NOT (p_sets_retry OR p_sets_breaker) THEN
        RETURN;
    END IF;
    INSERT INTO queen.policies (queue_id, consumer_group) VALUES (v_queue, p_group) ON CONFLICT DO NOTHING;
    UPDATE queen.policies y SET changed_at = clock_timestamp(), changed_by = p_by WHERE y.queue_id = v_queue AND y.consumer_group = p_group;
    IF p_sets_retry THEN
        UPDATE queen.policies y
        SET retry = p_retry, retry_limit = p_limit, retry_delays_ms = p_delays_ms, retry_jitter = p_jitter, poison = p_poison
        WHERE y.queue_id = v_queue AND y.consumer_group = p_group;
    END IF;
    IF p_sets_breaker AND v_before.breaker IS DISTINCT FROM p_breaker THEN
        UPDATE queen.policies y
        SET breaker = p_breaker, breaker_failures = p_failures, breaker_of = p_of, breaker_pause_ms = p_pause_ms
        WHERE y.queue_id = v_queue AND y.consumer_group = p_group;
        DELETE FROM queen.breakers b WHERE b.queue_id = v_queue AND p_group IN ('', b.consumer_group);
    END IF;
    DELETE FROM queen.policies y WHERE y.queue_id = v_queue AND y.retry IS NULL AND y.breaker IS NULL;
    UPDATE queen.queues q SET has_policies = x.some
    FROM (SELECT EXISTS (SELECT 1 FROM queen.policies y WHERE y.queue_id = v_queue) AS some) x
    WHERE q.id = v_queue AND q.has_policies <> x.some;
END $$;
