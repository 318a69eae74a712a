-- Forget keys of which limits were not used for an hour, have no leases and are full again: without their rows they are the same.
DELETE FROM queen.limit_keys k WHERE k.ctid = ANY (ARRAY(
    SELECT x.ctid FROM queen.limit_keys x
    LEFT JOIN queen.limits l ON l.queue_id = x.queue_id AND l.consumer_group = x.scope
    CROSS JOIN LATERAL queen.living_leases(x.partitions, x.groups, clock_timestamp()) a
    WHERE x.refilled_at < clock_timestamp() - interval '1 hour' AND a.partitions = '{}'
      AND (l.key_rate IS NULL OR queen.tokens_at(x.tokens, l.key_rate, l.key_burst, x.refilled_at, clock_timestamp()) >= l.key_burst)
    LIMIT 10000 FOR UPDATE OF x SKIP LOCKED))
