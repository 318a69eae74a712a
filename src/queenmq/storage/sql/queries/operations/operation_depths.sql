-- The partitions with the most open operations, at most $1: how many, and for how many seconds the oldest has waited.
SELECT o.queue_name AS queue, o.partition_name AS partition, count(*) AS operations,
       extract(epoch FROM clock_timestamp() - min(o.created_at))::float8 AS oldest_s
FROM queen.operation_queue o WHERE o.status IN ('pending', 'processing')
GROUP BY o.queue_name, o.partition_name ORDER BY count(*) DESC, o.queue_name, o.partition_name LIMIT $1
