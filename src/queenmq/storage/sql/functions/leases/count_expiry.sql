-- For queues with dlqAfterMaxRetries: an expired lease counts as a failed attempt of the first message that it left unfinished, the one
-- that its consumer was at, and when the attempts of that message are used up, it goes to the dead letters. The messages behind it
-- were merely handed back, and have their own attempts when they come to the front. With a policy it is skipped or parks its partition instead, as
-- after a failure that was reported (see queen.ack). The caller holds the row.
CREATE OR REPLACE FUNCTION queen.count_expiry(p_partition uuid, p_group text, p_queue queen.queues)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_row    queen.partition_consumers;
    v_poison int8multirange;
    v_failed integer;
    v_rule   record;
BEGIN
    SELECT * INTO v_row FROM queen.partition_consumers
    WHERE partition_id = p_partition AND consumer_group = p_group ORDER BY generation DESC LIMIT 1;
    IF NOT FOUND OR v_row.lease_id IS NULL OR isempty(v_row.lease_offsets) THEN
        RETURN;
    END IF;
    v_poison := int8multirange(int8range(lower(v_row.lease_offsets), lower(v_row.lease_offsets), '[]'));
    v_failed := queen.times_failed(v_row.failures, lower(v_row.lease_offsets));
    IF p_queue.has_policies THEN
        v_rule := queen.retry_rule(p_queue, p_group);
        PERFORM queen.note_outcomes(p_queue.id, p_group, ARRAY[v_row.lease_id], 0, 1);
    ELSE
        SELECT p_queue.retry_limit AS retry_limit, 'block' AS poison INTO v_rule;
    END IF;
    IF v_failed < v_rule.retry_limit OR v_rule.poison = 'park' THEN
        IF v_failed >= v_rule.retry_limit THEN
            v_row.skipped := v_row.skipped || ('9999-12-31Z', v_poison, true)::queen.skipped;
        ELSIF v_rule.poison = 'skip'
              AND (SELECT coalesce(sum(queen.count_offsets(s.offsets)), 0) FROM unnest(v_row.skipped) AS s) < 100 THEN
            v_row.skipped := v_row.skipped || (
                clock_timestamp() + queen.retry_delay(v_rule.delays_ms, v_rule.jitter, v_failed + 1), v_poison, false)::queen.skipped;
        END IF;
        UPDATE queen.partition_consumers
        SET lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL, skipped = v_row.skipped,
            failures = queen.count_failures(failures, v_poison, position, done),
            attempts = queen.head_failures(p_partition, position, done, queen.count_failures(failures, v_poison, position, done))
        WHERE partition_id = p_partition AND consumer_group = p_group;
        RETURN;
    END IF;
    PERFORM queen.bury(p_partition, p_group, v_poison, 'Lease expired too often', v_row.failures, true);
    UPDATE queen.partition_consumers
    SET lease_id = NULL, lease_expires_at = NULL, lease_offsets = NULL,
        done = done + v_poison, total_consumed = total_consumed + 1
    WHERE partition_id = p_partition AND consumer_group = p_group;
    PERFORM queen.forget_failures(p_partition, ARRAY[p_group], '{}');
END $$;
