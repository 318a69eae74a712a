SELECT id, name, clock_timestamp() AS now FROM queen.queues WHERE name = ANY ($1)
