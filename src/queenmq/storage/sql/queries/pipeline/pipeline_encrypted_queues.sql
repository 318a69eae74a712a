SELECT name FROM queen.queues WHERE encryption_enabled
