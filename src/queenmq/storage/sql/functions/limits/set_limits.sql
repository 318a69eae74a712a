-- Say how many leases a queue (p_group empty: all groups together), or one group of it, may have at once, and how many messages a second it gets; null
-- takes the limits back (p_given). p_key_…: the same for each key. Leases that are out count from now on, as far as there is room for them, and the bucket is full.
-- The caller holds the row of the queue. Locks: rows of limit_slots, limit_tokens and limit_keys.
CREATE OR REPLACE FUNCTION queen.set_limits(
    p_queue uuid, p_group text, p_by text, p_given text, p_leases integer, p_rate double precision, p_burst double precision,
    p_key_leases integer, p_key_rate double precision, p_key_burst double precision)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_shards integer := least(8, greatest(1, floor(p_burst / 64)));
    -- Above those of the rows that are deleted, because lookups begin with the newest.
    v_first  bigint := extract(epoch FROM clock_timestamp()) * 1000000;
BEGIN
    DELETE FROM queen.limits l WHERE l.queue_id = p_queue AND l.consumer_group = p_group;
    DELETE FROM queen.limit_slots s WHERE s.queue_id = p_queue AND s.scope = p_group;
    DELETE FROM queen.limit_tokens t WHERE t.queue_id = p_queue AND t.scope = p_group;
    IF p_given IS NOT NULL THEN
        INSERT INTO queen.limits (queue_id, consumer_group, changed_by, given, leases, rate, burst, shards, key_leases, key_rate, key_burst)
        VALUES (p_queue, p_group, p_by, p_given, p_leases, p_rate, p_burst, coalesce(v_shards, 0), p_key_leases, p_key_rate, p_key_burst);
        INSERT INTO queen.limit_slots (queue_id, scope, slot, generation, lease_id, partition_id, consumer_group)
        SELECT p_queue, p_group, g.n - 1, v_first, c.lease_id, c.partition_id, c.consumer_group
        FROM generate_series(1, p_leases) AS g (n)
        LEFT JOIN (
            SELECT x.lease_id, x.partition_id, x.consumer_group, row_number() OVER () AS n FROM queen.partition_consumers x
            WHERE x.queue_id = p_queue AND p_group IN ('', x.consumer_group) AND x.lease_id IS NOT NULL AND x.lease_expires_at > clock_timestamp()
        ) c ON c.n = g.n;
        INSERT INTO queen.limit_tokens (queue_id, scope, shard, generation, tokens)
        SELECT p_queue, p_group, g.n, v_first, p_burst / v_shards
        FROM generate_series(0, v_shards - 1) AS g (n) WHERE p_rate IS NOT NULL;
    END IF;
    PERFORM queen.seed_limit_keys(p_queue, p_group);
    UPDATE queen.queues q SET has_limits = x.some
    FROM (SELECT EXISTS (SELECT 1 FROM queen.limits l WHERE l.queue_id = p_queue) AS some) x
    WHERE q.id = p_queue AND q.has_limits <> x.some;
END $$;
