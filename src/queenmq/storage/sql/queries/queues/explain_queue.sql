-- What decides whether a queue ($1) delivers to a group ($2); without one, to a group without a policy of its own.
SELECT q.id, q.lease_time_s, queen.retry_limit_of(q, coalesce($2, '')) AS retry_limit, q.retry_delay_ms, q.delayed_processing_s, q.window_buffer_s, q.ttl_s,
       clock_timestamp() AS now
FROM queen.queues q WHERE q.name = $1
