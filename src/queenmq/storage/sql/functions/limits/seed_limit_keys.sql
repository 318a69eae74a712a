-- Begin to count for the limits of the keys of a queue (p_scope empty: all groups together), or of one group of it: leases that are out count, and the
-- buckets are full. The caller holds the row of the queue. Locks: rows of limit_keys.
CREATE OR REPLACE FUNCTION queen.seed_limit_keys(p_queue uuid, p_scope text) RETURNS void LANGUAGE sql AS $$
    DELETE FROM queen.limit_keys k WHERE k.queue_id = p_queue AND k.scope = p_scope;
    INSERT INTO queen.limit_keys (queue_id, scope, key, generation, partitions, groups, tokens)
    SELECT p_queue, p_scope, queen.fair_key(p.name, q.fair_separator), extract(epoch FROM clock_timestamp()) * 1000000,
           array_agg(c.partition_id), array_agg(c.consumer_group), l.key_burst
    FROM queen.limits l
    JOIN queen.queues q ON q.id = l.queue_id
    JOIN queen.partition_consumers c ON c.queue_id = l.queue_id AND p_scope IN ('', c.consumer_group)
                                    AND c.lease_id IS NOT NULL AND c.lease_expires_at > clock_timestamp()
    JOIN queen.partitions p ON p.id = c.partition_id
    WHERE l.queue_id = p_queue AND l.consumer_group = p_scope AND l.key_leases IS NOT NULL AND q.fair_separator IS NOT NULL
    GROUP BY 3, l.key_burst;
$$;
