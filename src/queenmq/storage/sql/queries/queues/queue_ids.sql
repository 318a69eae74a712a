SELECT id, name FROM queen.queues WHERE name = ANY ($1)
