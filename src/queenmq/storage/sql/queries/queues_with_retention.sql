SELECT id, name FROM queen.queues
WHERE ttl_s > 0 OR (retention_enabled AND (retention_s > 0 OR completed_retention_s > 0))
ORDER BY id
