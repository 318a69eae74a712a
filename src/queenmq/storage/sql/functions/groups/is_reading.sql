-- Whether a group has begun to read a queue, or a partition of it.
CREATE OR REPLACE FUNCTION queen.is_reading(p_queue queen.queues, p_group text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM queen.consumer_groups g
                   WHERE g.queue_name = p_queue.name AND g.name = p_group AND (g.registered OR g.placed_upto IS NOT NULL))
        OR EXISTS (SELECT 1 FROM queen.partition_consumers c WHERE c.queue_id = p_queue.id AND c.consumer_group = p_group)
$$;
