-- What decides whether a queue ($1) delivers.
SELECT q.id, q.lease_time_s, q.retry_limit, q.retry_delay_ms, q.delayed_processing_s, q.window_buffer_s, q.ttl_s,
       clock_timestamp() AS now
FROM queen.queues q WHERE q.name = $1
