-- The options of a queue ($1) by the names of the fields of QueueOptions, locked until the end of the transaction.
SELECT q.namespace, q.task, q.lease_time_s AS lease_time, q.max_size, q.ttl_s AS ttl, q.retry_limit, q.retry_delay_ms AS retry_delay,
       q.dead_letter_queue, q.dlq_after_max_retries, q.priority, q.delayed_processing_s AS delayed_processing,
       q.window_buffer_s AS window_buffer, q.retention_s AS retention_seconds, q.completed_retention_s AS completed_retention_seconds,
       q.retention_enabled, q.encryption_enabled, q.max_wait_time_s AS max_wait_time_seconds, q.archive_before_delete,
       q.set_aside_failed_pushes, q.pop_wait
FROM queen.queues q WHERE q.name = $1
FOR NO KEY UPDATE
