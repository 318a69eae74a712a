-- Change where a group starts in partitions that it has no position in yet. Returns the subscriptions changed.
CREATE OR REPLACE FUNCTION queen.resubscribe(p_group text, p_since timestamptz) RETURNS integer LANGUAGE sql AS $$
    -- Partitions that it is being given places in count as those that it has them in.
    SELECT queen.subscribe(g.queue_name, NULL, p_group, 'all', NULL) FROM queen.consumer_groups g
    WHERE g.name = p_group AND g.placed_upto IS NOT NULL;
    WITH whole AS (
        UPDATE queen.consumer_groups SET since = p_since, mode = 'timestamp' WHERE name = p_group RETURNING 1
    ), single AS (
        UPDATE queen.partition_subscriptions SET since = p_since, mode = 'timestamp' WHERE name = p_group RETURNING 1
    )
    SELECT (SELECT count(*) FROM whole)::integer + (SELECT count(*) FROM single)::integer
$$;
