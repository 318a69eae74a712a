-- Say what a queue does with messages that fail, or one group of it (p_group not empty); p_retry null takes it back. `changed` is null if there is
-- no such queue. `needs_contract`: `skip` and `park` are refused while servers of the version before may run: they would move positions over what
-- is skipped. Locks: the row of the queue.
CREATE OR REPLACE FUNCTION queen.set_retry(
    p_queue text, p_group text, p_by text, p_retry text, p_limit integer, p_delays_ms bigint[], p_jitter double precision, p_poison text,
    OUT changed boolean, OUT needs_contract boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_queue uuid;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.name = p_queue FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    changed := false;
    needs_contract := p_poison <> 'block' AND NOT EXISTS (SELECT 1 FROM queen.ready_fences);
    IF needs_contract THEN
        RETURN;
    END IF;
    IF p_retry IS NULL THEN
        DELETE FROM queen.policies y WHERE y.queue_id = v_queue AND y.consumer_group = p_group;
        changed := FOUND;
    ELSE
        INSERT INTO queen.policies AS y (queue_id, consumer_group, changed_by, retry, retry_limit, retry_delays_ms, retry_jitter, poison)
        VALUES (v_queue, p_group, p_by, p_retry, p_limit, p_delays_ms, p_jitter, p_poison)
        ON CONFLICT (queue_id, consumer_group) DO UPDATE
        SET changed_at = excluded.changed_at, changed_by = excluded.changed_by, retry = excluded.retry, retry_limit = excluded.retry_limit,
            retry_delays_ms = excluded.retry_delays_ms, retry_jitter = excluded.retry_jitter, poison = excluded.poison
        WHERE y.retry IS DISTINCT FROM excluded.retry;
        changed := FOUND;
    END IF;
    UPDATE queen.queues q SET has_policies = x.some
    FROM (SELECT EXISTS (SELECT 1 FROM queen.policies y WHERE y.queue_id = v_queue) AS some) x
    WHERE q.id = v_queue AND q.has_policies <> x.some;
END $$;
