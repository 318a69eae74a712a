SELECT id, name FROM queen.queues WHERE max_wait_time_s > 0 ORDER BY id
