-- What a group does with messages of a queue that fail: its own policy, or that of the queue, or the queue's options. Reads only; called
-- where the queue has policies at all.
CREATE OR REPLACE FUNCTION queen.retry_rule(
    p_queue queen.queues, p_group text, OUT retry_limit integer, OUT delays_ms bigint[], OUT jitter double precision, OUT poison text)
LANGUAGE sql STABLE AS $$
    SELECT coalesce(y.retry_limit, p_queue.retry_limit), coalesce(y.retry_delays_ms, ARRAY[p_queue.retry_delay_ms]),
           coalesce(y.retry_jitter, 0), coalesce(y.poison, 'block')
    FROM (VALUES (1)) AS one (row)
    LEFT JOIN LATERAL (
        SELECT y.retry_limit, y.retry_delays_ms, y.retry_jitter, y.poison FROM queen.policies y
        WHERE y.queue_id = p_queue.id AND y.consumer_group IN ('', p_group) AND y.retry IS NOT NULL
        ORDER BY y.consumer_group DESC LIMIT 1
    ) y ON true
$$;
