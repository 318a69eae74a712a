-- Say what a queue does with messages that fail, or one group of it (p_group not empty), and how much it gets. Of the parts, retries, breaker, limits and
-- fairness (of a queue only), those are set that p_sets_… names; null takes a part back. `changed` is null if there is no such queue. A breaker that
-- changes is closed and begins to count anew; that of the queue in all groups but those that have one of their own. If `refused` is not null, nothing was changed:
-- `contract`: `skip` and `park` are refused while servers of the version before may run: they would move positions over what is skipped.
-- `keys`: there would be limits of keys, and no fairness, which says what keys are.
-- `many`: more groups of the queue than 1,000 would have policies or limits, or their limits more than 10,000 leases together.
-- Locks: the row of the queue; rows of queen.breakers; what queen.set_limits and queen.set_fairness take.
CREATE OR REPLACE FUNCTION queen.set_policy(
    p_queue text, p_group text, p_by text,
    p_sets_retry boolean, p_retry text, p_limit integer, p_delays_ms bigint[], p_jitter double precision, p_poison text,
    p_sets_breaker boolean, p_breaker text, p_failures integer, p_of integer, p_pause_ms bigint,
    p_sets_limits boolean, p_limits text, p_leases integer, p_rate double precision, p_burst double precision,
    p_key_leases integer, p_key_rate double precision, p_key_burst double precision,
    p_sets_fairness boolean, p_fairness text, p_separator text,
    OUT changed boolean, OUT refused text)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue    queen.queues;
    v_before   queen.policies;
    v_limits   text;
    v_fairness text;
BEGIN
    IF p_sets_fairness THEN
        SELECT * INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR UPDATE;
    ELSE
        SELECT * INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    END IF;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO v_before FROM queen.policies y WHERE y.queue_id = v_queue.id AND y.consumer_group = p_group;
    SELECT l.given INTO v_limits FROM queen.limits l WHERE l.queue_id = v_queue.id AND l.consumer_group = p_group;
    SELECT f.given INTO v_fairness FROM queen.fairness f WHERE f.queue_id = v_queue.id;
    p_sets_limits := p_sets_limits AND v_limits IS DISTINCT FROM p_limits;
    p_sets_fairness := p_sets_fairness AND v_fairness IS DISTINCT FROM p_fairness;
    changed := p_sets_limits OR p_sets_fairness OR (p_sets_retry AND v_before.retry IS DISTINCT FROM p_retry)
               OR (p_sets_breaker AND v_before.breaker IS DISTINCT FROM p_breaker);
    IF NOT changed THEN
        RETURN;
    END IF;
    IF p_sets_retry AND p_poison <> 'block' AND NOT EXISTS (
        -- Recorded by the contract step, or with a new schema: from then on no server runs that does not know the column `skipped`.
        SELECT 1 FROM queen.schema_migrations WHERE version = 29)
    THEN
        refused := 'contract';
    ELSIF (p_sets_limits OR p_sets_fairness) AND (CASE WHEN p_sets_fairness THEN p_separator ELSE v_queue.fair_separator END) IS NULL AND (
        (p_sets_limits AND (p_key_leases IS NOT NULL OR p_key_rate IS NOT NULL)) OR EXISTS (
            SELECT 1 FROM queen.limits l
            WHERE l.queue_id = v_queue.id AND (l.key_leases IS NOT NULL OR l.key_rate IS NOT NULL)
              AND NOT (p_sets_limits AND l.consumer_group = p_group)))
    THEN
        refused := 'keys';
    ELSIF (coalesce(p_retry, p_breaker, p_limits) IS NOT NULL AND 1000 <= (
               SELECT count(*) FROM (
                   SELECT y.consumer_group FROM queen.policies y WHERE y.queue_id = v_queue.id
                   UNION SELECT l.consumer_group FROM queen.limits l WHERE l.queue_id = v_queue.id
               ) x WHERE x.consumer_group <> p_group))
          OR (p_sets_limits AND 10000 < p_leases + (
               SELECT coalesce(sum(l.leases), 0) FROM queen.limits l WHERE l.queue_id = v_queue.id AND l.consumer_group <> p_group))
    THEN
        refused := 'many';
    END IF;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    IF p_sets_fairness THEN
        PERFORM queen.set_fairness(v_queue, p_by, p_fairness, p_separator);
    END IF;
    IF p_sets_limits THEN
        PERFORM queen.set_limits(v_queue.id, p_group, p_by, p_limits, p_leases, p_rate, p_burst, p_key_leases, p_key_rate, p_key_burst);
    END IF;
    IF p_sets_fairness AND p_separator IS DISTINCT FROM v_queue.fair_separator THEN
        PERFORM queen.seed_limit_keys(l.queue_id, l.consumer_group) FROM queen.limits l WHERE l.queue_id = v_queue.id;
    END IF;
    IF NOT (p_sets_retry OR p_sets_breaker) THEN
        RETURN;
    END IF;
    INSERT INTO queen.policies (queue_id, consumer_group) VALUES (v_queue.id, p_group) ON CONFLICT DO NOTHING;
    UPDATE queen.policies y SET changed_at = clock_timestamp(), changed_by = p_by WHERE y.queue_id = v_queue.id AND y.consumer_group = p_group;
    IF p_sets_retry THEN
        UPDATE queen.policies y
        SET retry = p_retry, retry_limit = p_limit, retry_delays_ms = p_delays_ms, retry_jitter = p_jitter, poison = p_poison
        WHERE y.queue_id = v_queue.id AND y.consumer_group = p_group;
    END IF;
    IF p_sets_breaker AND v_before.breaker IS DISTINCT FROM p_breaker THEN
        UPDATE queen.policies y
        SET breaker = p_breaker, breaker_failures = p_failures, breaker_of = p_of, breaker_pause_ms = p_pause_ms
        WHERE y.queue_id = v_queue.id AND y.consumer_group = p_group;
        DELETE FROM queen.breakers b
        WHERE b.queue_id = v_queue.id AND p_group IN ('', b.consumer_group) AND (p_group <> '' OR NOT EXISTS (
            SELECT 1 FROM queen.policies y
            WHERE y.queue_id = v_queue.id AND y.consumer_group = b.consumer_group AND y.breaker IS NOT NULL));
    END IF;
    DELETE FROM queen.policies y WHERE y.queue_id = v_queue.id AND y.retry IS NULL AND y.breaker IS NULL;
    UPDATE queen.queues q SET has_policies = x.some
    FROM (SELECT EXISTS (SELECT 1 FROM queen.policies y WHERE y.queue_id = v_queue.id) AS some) x
    WHERE q.id = v_queue.id AND q.has_policies <> x.some;
END $$;
