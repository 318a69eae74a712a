-- Write down what a pop of a group has used of what queen.limits_for has allowed: the leases, each with its partition, and the number of messages.
-- The other arguments are what it has returned. The rows are locked by the caller, who calls this in the same transaction.
CREATE OR REPLACE FUNCTION queen.use_limits(
    p_group text, p_slots tid[], p_queue_slots integer, p_shards tid[], p_tokens double precision[], p_queue_shards integer,
    p_at timestamptz[], p_partitions uuid[], p_leases uuid[], p_messages integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_left  double precision := p_messages;
    v_taken double precision;
BEGIN
    IF p_queue_slots > 0 THEN
        UPDATE queen.limit_slots s
        SET lease_id = u.lease, partition_id = u.part, consumer_group = p_group, generation = s.generation + 1
        FROM unnest(p_slots[:least(p_queue_slots, cardinality(p_leases))], p_partitions, p_leases) AS u (version, part, lease)
        WHERE s.ctid = u.version;
    END IF;
    IF cardinality(p_slots) > p_queue_slots THEN
        UPDATE queen.limit_slots s
        SET lease_id = u.lease, partition_id = u.part, consumer_group = p_group, generation = s.generation + 1
        FROM unnest(p_slots[p_queue_slots + 1 : p_queue_slots + cardinality(p_leases)], p_partitions, p_leases) AS u (version, part, lease)
        WHERE s.ctid = u.version;
    END IF;
    FOR v_shard IN 1 .. coalesce(cardinality(p_shards), 0) LOOP
        IF v_shard = p_queue_shards + 1 THEN
            v_left := p_messages;
        END IF;
        v_taken := least(v_left, p_tokens[v_shard]);
        v_left := v_left - v_taken;
        UPDATE queen.limit_tokens t SET tokens = p_tokens[v_shard] - v_taken, refilled_at = p_at[v_shard], generation = t.generation + 1
        WHERE t.ctid = p_shards[v_shard] AND v_taken > 0;
    END LOOP;
END $$;
