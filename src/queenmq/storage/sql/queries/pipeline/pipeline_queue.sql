SELECT id, encryption_enabled, archive_before_delete FROM queen.queues WHERE name = $1
